package directory

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/sluice-io/sluice/sinks"
)

// fileName is what the name of a finished file says.
type fileName struct {
	topic     string
	partition int32
	id        sinks.TopicID // zero where a name has none: files of earlier versions, or of a broker without topic IDs
	lo, hi    int64         // the claim's
	extension string        // with its point
}

func (n fileName) String() string {
	return fmt.Sprintf("%s-%d-%s-%020d-%020d%s", n.topic, n.partition, n.id, n.lo, n.hi, n.extension)
}

// parseFileName reads the name of a finished file; topics may hold points and dashes. ok is false for any other name.
func parseFileName(s string) (n fileName, ok bool) {
	if hidden(s) {
		return n, false
	}
	rest, ok := s, false
	for _, extension := range extensions {
		if rest, ok = strings.CutSuffix(s, extension); ok {
			n.extension = extension
			break
		}
	}
	parts := strings.Split(rest, "-")
	if !ok || len(parts) < 4 {
		return n, false
	}
	i := len(parts) - 3
	if len(parts[i]) == topicIDDigits { // no partition number is that long
		if n.id, ok = parseTopicID(parts[i]); !ok || i < 2 {
			return n, false
		}
		i--
	}
	partition, err1 := strconv.ParseInt(parts[i], 10, 32)
	lo, err2 := strconv.ParseInt(parts[len(parts)-2], 10, 64)
	hi, err3 := strconv.ParseInt(parts[len(parts)-1], 10, 64)
	if err1 != nil || err2 != nil || err3 != nil || len(parts[len(parts)-2]) != 20 || len(parts[len(parts)-1]) != 20 {
		return n, false
	}
	n.topic, n.partition, n.lo, n.hi = strings.Join(parts[:i], "-"), int32(partition), lo, hi
	return n, true
}

// hidden says that readers of the Hadoop world pass a name over.
func hidden(name string) bool { return strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_") }

// topicIDDigits is the length of a topic ID in a name.
const topicIDDigits = 32

func parseTopicID(s string) (sinks.TopicID, bool) {
	id, err := sinks.ParseTopicID(s)
	return id, err == nil && id.String() == s
}

// extensions of finished files, longest first.
var extensions = []string{".json.zst", ".json.gz", ".json", ".parquet", ".avro"}

func (s *Sink) fileName(c sinks.Claim) fileName {
	return fileName{topic: c.Topic, partition: c.Partition, id: c.TopicID, lo: c.Lo, hi: c.Hi, extension: s.extension}
}

const temporarySuffix = ".tmp"

// temporaryName is the name under which one attempt of this process writes a file. No two attempts share one, so a write that was cut off and is
// still running cannot touch the file of the next.
func (s *Sink) temporaryName(of string) string {
	return fmt.Sprintf(".%s.%s-%d%s", of, s.writer, s.attempts.Add(1), temporarySuffix)
}

// finalOf is what a temporary name stands for.
func finalOf(temporary string) (final string, ok bool) {
	name, ok := strings.CutPrefix(temporary, ".")
	if !ok {
		return "", false
	}
	if name, ok = strings.CutSuffix(name, temporarySuffix); !ok {
		return "", false
	}
	i := strings.LastIndexByte(name, '.')
	if i < 0 {
		return "", false
	}
	return name[:i], true
}
