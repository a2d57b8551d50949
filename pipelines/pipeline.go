package pipelines

import (
	"fmt"
	"time"
)

// Pos is a place in a pipeline file; lines and columns count from 1, columns
// in characters.
type Pos struct {
	File string
	Line int
	Col  int
}

// String renders file:line:col.
func (p Pos) String() string { return fmt.Sprintf("%s:%d:%d", p.File, p.Line, p.Col) }

// Pipeline is one YAML document, checked: names are legal, enumerations are
// known, expressions compile, and defaults are filled in. It is not changed
// after Parse and may be shared by goroutines; what is compiled from it
// (Chain, Columns, Expression) may not.
type Pipeline struct {
	Name    string
	Pos     Pos
	Brokers *Brokers // nil: the embedded broker of `sluice run`, or --brokers
	Collect *Collect // nil: this pipeline only stores (its topic is filled by others)
	Process []Stage  // run by the agent, before the topic
	Topic   Topic
	Sinks   []*SinkSpec // empty: this pipeline only collects
	Errors  Errors
	Tests   []Test

	times []timeField // of the topic's events
}

// timeField is a field that is known to be a time, and its usual place.
type timeField struct {
	name  string
	place int
}

// Brokers says how to reach a cluster.
type Brokers struct {
	Addr []string // host:port, at least one
	TLS  *TLS     // nil: plaintext
	SASL *SASL    // nil: no authentication
}

// TLS is a client's TLS settings. The zero value means the system's roots and
// the server's own name.
type TLS struct {
	CAFile             string // PEM
	CertFile           string // PEM, with KeyFile: a client certificate
	KeyFile            string
	ServerName         string
	InsecureSkipVerify bool
}

// SASL is how a client authenticates to the brokers.
type SASL struct {
	Mechanism SASLMechanism
	Username  string
	Password  Secret
}

// SASLMechanism is a SASL mechanism, named as Kafka's sasl.mechanism.
type SASLMechanism string

// The mechanisms.
const (
	SASLPlain       SASLMechanism = "PLAIN"
	SASLScramSHA256 SASLMechanism = "SCRAM-SHA-256"
	SASLScramSHA512 SASLMechanism = "SCRAM-SHA-512"
)

// Label is a constant that goes with every line: a field of a parsed event
// (unless the event has a field of that name), a header of a raw line.
type Label struct {
	Name  string
	Value string
}

// StartAt says where a file is begun that was there at the very first start.
type StartAt string

// The places to start at.
const (
	StartAtBeginning StartAt = "beginning"
	StartAtEnd       StartAt = "end"
)

// Symlinks says which symbolic links are followed.
type Symlinks string

// The choices.
const (
	SymlinksFollow Symlinks = "follow"
	SymlinksWithin Symlinks = "within_roots" // those that lead to a place below Roots
	SymlinksNone   Symlinks = "none"
)

// FileInput is `collect.file`. Relative patterns are relative to the working
// directory of the process.
type FileInput struct {
	InputOptions // headers: host and path
	LineOptions
	Container    *Container    // nil: plain files
	Include      []string      // globs, at least one
	Exclude      []string      // globs of paths to leave out
	StartAt      StartAt       // default beginning; files that appear later always start at 0
	IgnoreOlder  time.Duration // files not changed for so long when they are first seen are taken as read; 0: none
	Symlinks     Symlinks      // default follow
	Roots        []string      // for symlinks: within_roots; empty: the directories that the patterns begin with
	OpenFilesMax int           // descriptors held; 0: the agent's default
	// DeletedBytesMax bounds what removed files keep on disk while they are still read; default 10 GiB. Beyond it those removed longest ago are let go.
	DeletedBytesMax int64
	Identity        bool // default false: headers file_id and file_offset too

	ScanInterval time.Duration // how often the directories are listed; 0: the agent's default
	RotateGrace  time.Duration // how long a rotated file must be quiet before it is closed; 0: the agent's default
	PartialAfter time.Duration // how long a last line without newline waits before it is sent; 0: the agent's default
}

// TopicValue says what a topic's records hold.
type TopicValue string

// A topic's value is the raw line until a parse stage runs before the topic;
// from then on it is the event as a JSON object. Records of an event topic
// that carry the header [HeaderRaw] hold a raw line all the same.
const (
	ValueRaw   TopicValue = "raw"
	ValueEvent TopicValue = "event"
)

// HeaderRaw marks, with the value "1", a record of an event topic whose line
// did not parse and was kept (`errors.parse: keep`).
const HeaderRaw = "sluice_raw"

// Topic is the topic between agent and sinks.
type Topic struct {
	Name        string      // default: the pipeline's name
	Partitions  int32       // 0: the broker's default; at most 10,000
	Replicas    int16       // 0: the broker's default; at most 100
	Key         *Source     // nil: no key
	Hash        *Source     // nil: the key chooses the partition; else this does, and is not sent
	Partition   *Source     // nil: Hash or Key choose the partition; else the whole number that this gives does, modulo the partitions
	NameFrom    *Source     // nil: all lines go to Name; else to the topic that this names, if it names one
	TopicsMax   int         // how many topics NameFrom may name; 0: 100
	Spread      Spread      // where lines go that none of these gives a partition; default file
	Compression Compression // of the agent's batches; default auto
	Batch       AgentBatch  // when the agent closes a batch
	MaxInFlight int         // batches of a partition sent and not acknowledged; 0: 5, the most there can be
	OnUnknown   OnUnknown   // what the agent does with batches that may be stored or not; default resend
	Value       TopicValue  // worked out from the stages, not a setting
	Config      []Label     // topic settings by Kafka's names, as text, in the file's order
}

// Spread says how lines without a key are spread over a topic's partitions.
type Spread string

// The ways.
const (
	SpreadFile       Spread = "file"        // a file's lines stay in one partition, in order
	SpreadRoundRobin Spread = "round_robin" // each batch goes to the next partition
)

// AgentBatch says when the agent closes what it sends together: by whichever comes first.
type AgentBatch struct {
	Bytes int           // before compression; 0: 1 MiB
	Lines int           // 0: 100,000
	Age   time.Duration // 0: 2 ms
}

// OnUnknown says what becomes of batches of which the brokers can no longer tell whether they have them.
type OnUnknown string

// The policies.
const (
	OnUnknownResend OnUnknown = "resend" // their lines may come twice
	OnUnknownHold   OnUnknown = "hold"   // the partition waits for a decision
)

// Compression is a codec by name.
type Compression string

// The codecs. Which are allowed depends on the place: a topic takes auto,
// none, gzip, snappy, lz4 and zstd; Parquet none, gzip, snappy, lz4 and zstd;
// JSON lines none, gzip and zstd; Avro none, deflate, snappy and zstd.
const (
	CompressionAuto   Compression = "auto"
	CompressionNone   Compression = "none"
	CompressionGzip   Compression = "gzip"
	CompressionSnappy Compression = "snappy"
	CompressionLZ4    Compression = "lz4"
	CompressionZstd   Compression = "zstd"

	CompressionDeflate Compression = "deflate"
)

// SinkSpec is one destination: `sink:`, or one entry of `sinks:`.
type SinkSpec struct {
	Pipeline   string
	Name       string // "" for `sink:`
	Pos        Pos
	Process    []Stage     // run by the worker, after the topic
	ClickHouse *ClickHouse // exactly one of ClickHouse, Directory and HDFS is set
	Directory  *Directory
	HDFS       *HDFS
	Columns    []Column // nil: every top-level field by its name
	Batch      Batch
	OnLost     OnLost // default stop

	upstream knownFields // what the records of the topic hold, as far as the file says
}

// Group is the consumer group of the sink: PIPELINE, or PIPELINE.NAME.
func (s *SinkSpec) Group() string {
	if s.Name == "" {
		return s.Pipeline
	}
	return s.Pipeline + "." + s.Name
}

// OnLost says what a sink does when retention removed records before they were stored.
type OnLost string

// The policies.
const (
	OnLostStop     OnLost = "stop"     // the partition stops
	OnLostContinue OnLost = "continue" // it goes on at the start of the log
)

// ClickHouse is a table as destination.
type ClickHouse struct {
	Addr     []string // host:port, at least one; several only for replicated and distributed tables
	Database string   // default "default"
	Table    string
	Username string // default "default"
	Password Secret
	TLS      *TLS // nil: plaintext

	Protocol       Protocol    // default native
	Compression    Compression // of what is sent: default auto, which is none to a server of this machine and lz4 to others; lz4, zstd, none
	PartsPerSecond float64     // a worker's batches make no more parts a second; default 50, 0: no limit
	Quorum         int         // replicas that must have a batch of a replicated table before it counts as stored; 0: the server's default
	Misfit         Misfit
}

// Protocol is how a ClickHouse server is spoken to.
type Protocol string

// The protocols.
const (
	ProtocolNative Protocol = "native"
	ProtocolHTTP   Protocol = "http"
)

// Misfit says what becomes of a record with a value that its column cannot hold. "" is MisfitDeadLetter.
type Misfit struct {
	Range MisfitPolicy // out of the type's range: dead_letter, null (a Nullable column), clamp
	Null  MisfitPolicy // a null for a column that takes none: dead_letter, zero
	Time  MisfitPolicy // a time that is missing or cannot be read: dead_letter, record
}

// MisfitPolicy is a way out for a value that does not fit.
type MisfitPolicy string

// The ways. All but the first store the record, and name the column in the table's column _marks, if it has one.
const (
	MisfitDeadLetter MisfitPolicy = "dead_letter"
	MisfitNull       MisfitPolicy = "null"
	MisfitClamp      MisfitPolicy = "clamp"
	MisfitZero       MisfitPolicy = "zero"
	MisfitRecordTime MisfitPolicy = "record"
)

// Format is a file format by name.
type Format string

// The formats.
const (
	FormatParquet Format = "parquet"
	FormatJSON    Format = "json" // JSON lines
	FormatAvro    Format = "avro" // object container files
)

// Batch says when a batch of one partition is closed: by whichever comes first.
type Batch struct {
	Rows  int           // default 100,000; at most 10,000,000
	Bytes int           // of record values; default 32 MiB; at most 1 GiB
	Age   time.Duration // default 1 s for ClickHouse, 10 s for files; at most 1 h
	Idle  time.Duration // how long no record came; 0: Age alone closes a batch that is not full
}

// Column is one column of a destination and the expression that fills it.
type Column struct {
	Name string
	Expr *Source
}

// ErrorPolicy says what becomes of a line that a stage could not work on.
type ErrorPolicy string

// The policies.
const (
	ErrorsDeadLetter ErrorPolicy = "dead_letter" // to the dead-letter topic, with reason
	ErrorsKeep       ErrorPolicy = "keep"        // raw, marked with HeaderRaw
	ErrorsDrop       ErrorPolicy = "drop"        // counted by reason
)

// Errors is `errors:`.
type Errors struct {
	Parse      ErrorPolicy // default dead_letter when DeadLetter is set, else keep
	DeadLetter string      // topic for what cannot be worked on or stored; "": none

	// DeadLetterShare is the largest part of a partition's last records that a sink may send there, above 0 and up to 1; default 0.5.
	DeadLetterShare float64
}

// Test is one entry of `tests:`.
type Test struct {
	Pos   Pos
	In    string
	Out   []Expectation // the events that come out; empty: the line is dropped
	Error string        // not "": a stage must fail with a message that contains it
}

// Expectation is a subset of an event's fields.
type Expectation struct {
	Pos    Pos
	Fields []ExpectedField
}

// ExpectedField is one expected field: want is what the YAML holds (nil, bool,
// int64, uint64, float64, string, []any, map[string]any).
type ExpectedField struct {
	Pos  Pos
	Name string
	Want any
}
