package sinks

import (
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
)

// metadataBytesMax is the most metadata a broker takes with a committed offset (Kafka's offset.metadata.max.bytes default).
const metadataBytesMax = 4096

// claimVersion heads every metadata text this worker commits. A text with another version is not read as a claim.
const claimVersion = "sluice1"

// TopicID is a topic's identity, which a topic of the same name made later does not share (KIP-516).
type TopicID [16]byte

// String returns the ID as 32 hexadecimal digits.
func (id TopicID) String() string { return hex.EncodeToString(id[:]) }

// ParseTopicID reads what String writes.
func ParseTopicID(s string) (id TopicID, err error) {
	b, err := hex.DecodeString(s)
	if err != nil || len(b) != len(id) {
		return id, fmt.Errorf("topic ID %q: want 32 hexadecimal digits", s)
	}
	copy(id[:], b)
	return id, nil
}

// Claim is a sealed range of one partition: the identity under which its rows are written, however often and by whichever
// worker. Immutable once made.
//
// A claim travels in the metadata of the group's committed offset, which is Lo while the claim is open:
//
//	sluice1 hi=HI epoch=EPOCH topic=TOPIC-ID schema=HASH server=SERVER
//
// and a closed position (a plain commit of Hi+1) carries
//
//	sluice1 topic=TOPIC-ID
//
// so that a worker which finds it can tell whether the offset still belongs to the topic of that name. SERVER comes last and runs to
// the end; it is cut at the broker's limit for metadata. A text that does not parse is somebody else's commit: the offset counts, no
// claim is open.
type Claim struct {
	Pipeline  string
	Sink      string
	Topic     string
	TopicID   TopicID
	Partition int32
	Lo, Hi    int64 // first and last offset, both inclusive; offsets within may be absent (compaction, control records)
	Epoch     int32 // leader epoch of the record at Hi, -1 where the broker gives none
	Schema    string
	Server    string
}

// Identity is the text that names the claim at the destination, the same for every attempt of every worker.
func (c Claim) Identity() string {
	return fmt.Sprintf("%s%d-%d/%d", c.IdentityPrefix(), c.Lo, c.Hi, c.Epoch)
}

// IdentityPrefix begins the identities of all claims of the sink's partition.
func (c Claim) IdentityPrefix() string {
	return fmt.Sprintf("%s/%s/%s/%d/", c.Pipeline, c.Sink, c.TopicID, c.Partition)
}

// metadata is the text committed with offset Lo while the claim is open.
func (c Claim) metadata() string {
	b := make([]byte, 0, 160)
	b = append(b, claimVersion...)
	b = append(b, " hi="...)
	b = strconv.AppendInt(b, c.Hi, 10)
	b = append(b, " epoch="...)
	b = strconv.AppendInt(b, int64(c.Epoch), 10)
	b = append(b, " topic="...)
	b = hex.AppendEncode(b, c.TopicID[:])
	b = append(b, " schema="...)
	b = append(b, strings.ReplaceAll(c.Schema, " ", "_")...)
	b = append(b, " server="...)
	b = append(b, c.Server...)
	return string(b[:min(len(b), metadataBytesMax)])
}

// ClosedMetadata is the text committed with a plain offset: no claim is open, and the destination holds no rows of another topic of this name at or above it.
func ClosedMetadata(id TopicID) string { return claimVersion + " topic=" + id.String() }

// CommitNote is what the metadata of an offset says that a worker committed.
type CommitNote struct {
	TopicID TopicID
	Claim   bool // the range from the committed offset to Hi is open; the fields below are set
	Hi      int64
	Epoch   int32
	Schema  string
	Server  string
}

// ParseCommitNote reads the metadata of a committed offset; ok is false for a text that no worker wrote.
func ParseCommitNote(metadata string) (n CommitNote, ok bool) {
	rest, found := strings.CutPrefix(metadata, claimVersion+" ")
	if !found {
		return n, false
	}
	if head, server, found := strings.Cut(rest, " server="); found {
		rest, n.Server = head, server
	}
	seen := map[string]bool{}
	for _, field := range strings.Fields(rest) {
		key, value, _ := strings.Cut(field, "=")
		if err := n.set(key, value); err != nil {
			return CommitNote{}, false
		}
		seen[key] = true
	}
	n.Claim = seen["hi"]
	return n, seen["topic"] && (!n.Claim || seen["epoch"] && seen["schema"])
}

func (n *CommitNote) set(key, value string) (err error) {
	switch key {
	case "hi":
		n.Hi, err = strconv.ParseInt(value, 10, 64)
	case "epoch":
		var epoch int64
		epoch, err = strconv.ParseInt(value, 10, 32)
		n.Epoch = int32(epoch)
	case "topic":
		n.TopicID, err = ParseTopicID(value)
	case "schema":
		n.Schema = value
	default: // a later writer's addition: a claim must stay readable for an older worker
	}
	return err
}
