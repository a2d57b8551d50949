package directory

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/sluice-io/sluice/pipelines"
	"github.com/sluice-io/sluice/sinks"
)

// The columns every row has.
const (
	columnTopic     = "_topic"
	columnPartition = "_partition"
	columnOffset    = "_offset"
	columnTime      = "_time"
	columnRaw       = "_raw" // of lines that were not parsed
)

// writeBufferBytes is the buffer between an encoder and its file.
const writeBufferBytes = 256 << 10

// Sink is a tree of files as destination. Safe for concurrent use.
type Sink struct {
	log       *slog.Logger
	spec      *pipelines.SinkSpec
	files     *pipelines.Files
	server    string // what the destination is called
	open      func() (FS, error)
	writer    string // names this process in temporary files and ledgers
	extension string
	attempts  atomic.Int64
	marked    markers

	mu      sync.Mutex // guards what follows
	fs      FS         // nil until Check succeeded
	schema  *schema    // of files with columns; never changed in place
	hash    string     // of the mapping
	ledgers map[ledgerKey]*ledger
	current map[int32]*ledger // of each partition, by the topic ID that was asked for last

	namesMu sync.Mutex // guards byNames; held over the reading of the tree
	byNames map[ledgerKey][]span
}

type ledgerKey struct {
	topic     string
	partition int32
	id        sinks.TopicID
}

// New makes the sink of spec.Directory. Nothing is touched before Check.
func New(log *slog.Logger, spec *pipelines.SinkSpec) (*Sink, error) {
	d := spec.Directory
	server := d.Path
	if path, err := filepath.Abs(d.Path); err == nil {
		server = path
	}
	return NewOn(log, spec, server, func() (FS, error) {
		return OSFS(d.Path, OSConfig{FileMode: d.FileMode, DirMode: d.DirMode, NoSync: !d.Sync})
	})
}

// NewOn makes a sink of files on another file system. open makes the root if need be, and is called by each Check; server is what the destination is called in claims
// and messages.
func NewOn(log *slog.Logger, spec *pipelines.SinkSpec, server string, open func() (FS, error)) (*Sink, error) {
	columns, err := spec.NewColumns()
	if err != nil {
		return nil, err
	}
	for _, c := range spec.Columns {
		if _, err := sinks.OwnColumn(c, columnTopic, columnPartition, columnOffset, columnTime); err != nil {
			return nil, err
		}
	}
	files := spec.Files()
	extension, err := extensionOf(files)
	if err != nil {
		return nil, err
	}
	if _, err := newPlacer(files.Partition, nil); err != nil {
		return nil, err
	}
	var id [4]byte
	rand.Read(id[:])
	return &Sink{
		log: log, spec: spec, files: files, server: server, open: open, writer: hex.EncodeToString(id[:]), extension: extension, hash: columns.Hash(),
		ledgers: map[ledgerKey]*ledger{}, current: map[int32]*ledger{},
	}, nil
}

func extensionOf(f *pipelines.Files) (string, error) {
	switch f.Format {
	case pipelines.FormatParquet:
		_, err := parquetCodec(f.Compression)
		return ".parquet", err
	case pipelines.FormatAvro:
		_, err := avroCodec(f.Compression)
		return ".avro", err
	}
	switch f.Compression {
	case pipelines.CompressionNone:
		return ".json", nil
	case pipelines.CompressionGzip:
		return ".json.gz", nil
	case pipelines.CompressionZstd, pipelines.CompressionAuto, "":
		return ".json.zst", nil
	default:
		return "", fmt.Errorf("JSON lines cannot be compressed with %s: use zstd, gzip or none", f.Compression)
	}
}

// Check makes the directory if need be, tries it with a file, and reads the columns of what it holds.
func (s *Sink) Check(context.Context) (sinks.Destination, error) {
	d := sinks.Destination{
		Server:       s.server,
		Schema:       s.hash,
		DropsRepeats: true,
		Guarantee:    "exactly once: the files of a claim count from one rename on, which only the partition's owner can make",
	}
	dir, err := s.open()
	if err == nil {
		err = s.try(dir)
	}
	if err != nil {
		return d, fmt.Errorf("directory %s cannot be written to: %w", d.Server, err)
	}
	known, err := loadSchema(dir)
	if err != nil {
		return d, fmt.Errorf("directory %s: %w", d.Server, err)
	}
	s.namesMu.Lock()
	s.byNames = nil // the directory may have been made again
	s.namesMu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fs, s.schema = dir, known
	return d, nil
}

// try makes and removes a file.
func (s *Sink) try(dir FS) error {
	name := s.temporaryName("check")
	f, err := dir.Create(name)
	if err != nil {
		return err
	}
	return errors.Join(f.Close(), dir.Remove(name))
}

// NewBlock returns a block of the sink's format.
func (s *Sink) NewBlock() (sinks.Block, error) {
	columns, err := s.spec.NewColumns()
	if err != nil {
		return nil, err
	}
	dir, known := s.state()
	if dir == nil {
		return nil, errors.New("the directory has not been checked yet")
	}
	places, err := newPlacer(s.files.Partition, s.watermark)
	if err != nil {
		return nil, err
	}
	switch s.files.Format {
	case pipelines.FormatParquet, pipelines.FormatAvro:
		return newColumnBlock(columns, places, known, s.currentSchema), nil
	}
	return newJSONBlock(columns, places), nil
}

func (s *Sink) state() (FS, *schema) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fs, s.schema
}

func (s *Sink) currentSchema() *schema {
	_, known := s.state()
	return known
}

// watermark is that of a partition, 0 when it is not known.
func (s *Sink) watermark(partition int32) int64 {
	s.mu.Lock()
	l := s.current[partition]
	s.mu.Unlock()
	if l == nil {
		return 0
	}
	return l.watermark.Load()
}

func (s *Sink) ledger(topic string, partition int32, id sinks.TopicID) *ledger {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := ledgerKey{topic, partition, id}
	l := s.ledgers[key]
	if l == nil {
		l = &ledger{sink: s, dir: ledgerDir(topic, partition, id), topic: topic, partition: partition, id: id}
		s.ledgers[key] = l
	}
	s.current[partition] = l
	return l
}

// Stored takes the partition over, so that no other worker can store rows of it any more, and tells what is stored: by the partition's ledger, and by the names of files
// in the root. It removes what others left unfinished.
func (s *Sink) Stored(ctx context.Context, c sinks.Claim) (sinks.Stored, error) {
	stored, err := s.stored(c)
	if errors.Is(err, fs.ErrNotExist) { // an error while the directory is made again is Check's
		if _, err = s.Check(ctx); err != nil {
			return stored, err
		}
		s.log.Warn("the directory was removed while rows were written to it, and is made again, empty", "directory", s.server)
		stored, err = s.stored(c)
	}
	return stored, err
}

func (s *Sink) stored(c sinks.Claim) (sinks.Stored, error) {
	stored := sinks.Stored{Max: -1, MaxUnknown: -1}
	dir, _ := s.state()
	l := s.ledger(c.Topic, c.Partition, c.TopicID)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.takeOver(dir); err != nil {
		return stored, err
	}
	stored.Present = within(l.entry.Stored, c)
	if n := len(l.entry.Stored); n > 0 {
		stored.Max = l.entry.Stored[n-1].Hi
	}
	if c.TopicID == (sinks.TopicID{}) {
		stored.MaxUnknown = stored.Max
	}
	if err := s.storedInRoot(dir, c, &stored); err != nil {
		return stored, err
	}
	stored.Present = merge(stored.Present)
	stored.Mend = fmt.Sprintf("in %s, give the files %s-%d-LO-HI%s their topic's ID, as %s-%d-ID-LO-HI%s: this one's if they are of this topic, any other 32 "+
		"hexadecimal digits if they are of an earlier one; or move them elsewhere; or commit a position for the group",
		s.server, c.Topic, c.Partition, s.extension, c.Topic, c.Partition, s.extension)
	return stored, nil
}

// storedInRoot adds what the names of files in the root say, which a ledger need not know of: earlier versions wrote them. It removes what those
// left unfinished of the partition.
func (s *Sink) storedInRoot(dir FS, c sinks.Claim, stored *sinks.Stored) error {
	entries, err := dir.List("")
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Dir {
			continue
		}
		if final, ok := finalOf(e.Name); ok {
			if err := s.removeLeftover(dir, e.Name, final, c); err != nil {
				return err
			}
			continue
		}
		n, ok := parseFileName(e.Name)
		unknown := n.id == sinks.TopicID{}
		if !ok || n.topic != c.Topic || n.partition != c.Partition || n.id != c.TopicID && !unknown {
			continue
		}
		stored.Max = max(stored.Max, n.hi)
		if unknown {
			stored.MaxUnknown = max(stored.MaxUnknown, n.hi)
		}
		stored.Present = append(stored.Present, within([]span{{n.lo, n.hi}}, c)...)
	}
	return nil
}

func (s *Sink) removeLeftover(dir FS, name, final string, c sinks.Claim) error {
	n, ok := parseFileName(final)
	if !ok || n.topic != c.Topic || n.partition != c.Partition {
		return nil
	}
	err := dir.Remove(name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	s.log.Info("removed an unfinished file of an earlier worker", "file", name)
	return nil
}

// storedByNames is what the names of the files in the whole tree say of a partition that has no ledger yet. The tree is read once.
func (s *Sink) storedByNames(dir FS, l *ledger) ([]span, error) {
	s.namesMu.Lock()
	defer s.namesMu.Unlock()
	if s.byNames == nil {
		found := map[ledgerKey][]span{}
		if err := readNames(dir, "", found); err != nil {
			return nil, fmt.Errorf("read the names of the files below %s: %w", s.server, err)
		}
		s.byNames = found
	}
	return s.byNames[ledgerKey{l.topic, l.partition, l.id}], nil
}

func readNames(dir FS, at string, found map[ledgerKey][]span) error {
	entries, err := dir.List(at)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Dir && !hidden(e.Name) {
			if err := readNames(dir, path.Join(at, e.Name), found); err != nil {
				return err
			}
		}
		if n, ok := parseFileName(e.Name); ok && !e.Dir {
			key := ledgerKey{n.topic, n.partition, n.id}
			found[key] = addSpan(found[key], n.lo, n.hi)
		}
	}
	return nil
}

// merge sorts ranges and joins those that touch.
func merge(ranges []sinks.Range) []sinks.Range {
	slices.SortFunc(ranges, func(a, b sinks.Range) int {
		if a.Lo < b.Lo {
			return -1
		}
		return 1
	})
	out := ranges[:0]
	for _, r := range ranges {
		if n := len(out); n > 0 && r.Lo <= out[n-1].Hi+1 {
			out[n-1].Hi = max(out[n-1].Hi, r.Hi)
			continue
		}
		out = append(out, r)
	}
	return out
}
