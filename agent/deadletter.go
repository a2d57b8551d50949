package agent

import (
	"fmt"
	"strconv"

	"github.com/sluice-io/sluice/agent/producer"
	"github.com/sluice-io/sluice/internal/record"
	"github.com/sluice-io/sluice/pipelines"
)

// letter is a record for the dead-letter topic.
type letter struct {
	key, value []byte
	headers    []producer.Header
}

// newLetter makes a dead letter of a line. A value that the topic cannot take is cut.
func newLetter(p *pipelines.Pipeline, dead producer.Topic, key, value []byte, headers []producer.Header, reason, stage string) letter {
	if most := dead.RecordBytesMax - recordOverheadBytes; most > 0 && len(value) > most {
		value = value[:most]
	}
	h := append(append([]producer.Header{}, headers...),
		header("dlq_reason", reason), header("dlq_stage", stage), header("dlq_topic", p.Topic.Name))
	return letter{key: key, value: value, headers: h}
}

// from adds where in a file the line was.
func (d letter) from(path string, offset int64) letter {
	d.headers = append(d.headers, header("dlq_path", path), header("dlq_file_offset", strconv.FormatInt(offset, 10)))
	return d
}

// letterKey names a line by its file's content and its offset.
func letterKey(id []byte, offset int64) []byte {
	return strconv.AppendInt(append(append([]byte{}, id...), '/'), offset, 10)
}

// deadLetters makes batches of dead letters from refused records. It is called on the destination's goroutine and reads nothing that
// changes once lines are sent.
func (w *worker) deadLetters(of *producer.Batch, records []producer.Refused) ([]*producer.Batch, error) {
	pack := producer.NewPacker(&producer.Memory{}, 0, func() record.Codec { return record.None })
	now := w.runner.cfg.Now().UnixMilli()
	dead := w.runner.deadTopic()
	for i, x := range records {
		d := w.letterOf(dead, of, i, x)
		to := pack.To(w.pipe.Errors.DeadLetter, partitionOf(d.key, max(dead.Partitions, 1)), classDead)
		if err := to.Add(now, d.key, d.value, d.headers, x.Mark); err != nil {
			return nil, err
		}
	}
	return pack.Take()
}

// letterOf makes a dead letter of a refused record: its value as it was sent. After a restart the file and the offset are known no more.
func (w *worker) letterOf(dead producer.Topic, of *producer.Batch, i int, x producer.Refused) letter {
	reason := x.Err.Error()
	if p, ok := pieceOf(of, x); ok {
		return newLetter(w.pipe, dead, letterKey(p.id, x.Mark.Offset), x.Value, p.headers, reason, "produce").from(p.name, x.Mark.Offset)
	}
	key := fmt.Appendf(nil, "%s/%d/%d/%d/%d", of.Topic, of.Partition, of.Producer, of.BaseSequence, i)
	return newLetter(w.pipe, dead, key, x.Value, x.Headers, reason, "produce")
}

func pieceOf(of *producer.Batch, x producer.Refused) (*piece, bool) {
	p, ok := of.Ranges().(*parcel)
	if !ok || !x.Known || int(x.Mark.Source) >= len(p.pieces) {
		return nil, false
	}
	return &p.pieces[x.Mark.Source], true
}
