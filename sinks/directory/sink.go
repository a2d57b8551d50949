package directory

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
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

// Sink is a directory as destination. Safe for concurrent use.
type Sink struct {
	log       *slog.Logger
	spec      *pipelines.SinkSpec
	open      func() (FS, error)
	writer    string // names this process in temporary files
	extension string
	attempts  atomic.Int64

	mu     sync.Mutex // guards what follows
	fs     FS         // nil until Check succeeded
	schema *schema    // of Parquet files; never changed in place
	hash   string     // of the mapping
}

// New makes the sink of spec.Directory. Nothing is touched before Check.
func New(log *slog.Logger, spec *pipelines.SinkSpec) (*Sink, error) {
	return newSink(log, spec, func() (FS, error) { return OSFS(spec.Directory.Path) })
}

func newSink(log *slog.Logger, spec *pipelines.SinkSpec, open func() (FS, error)) (*Sink, error) {
	columns, err := spec.NewColumns()
	if err != nil {
		return nil, err
	}
	for _, c := range spec.Columns {
		if _, err := sinks.OwnColumn(c, columnTopic, columnPartition, columnOffset, columnTime); err != nil {
			return nil, err
		}
	}
	extension, err := extensionOf(spec.Directory)
	if err != nil {
		return nil, err
	}
	var id [4]byte
	rand.Read(id[:])
	return &Sink{
		log: log, spec: spec, open: open, writer: hex.EncodeToString(id[:]), extension: extension, hash: columns.Hash(),
	}, nil
}

func extensionOf(d *pipelines.Directory) (string, error) {
	if d.Format == pipelines.FormatParquet {
		_, err := parquetCodec(d.Compression)
		return ".parquet", err
	}
	switch d.Compression {
	case pipelines.CompressionNone:
		return ".json", nil
	case pipelines.CompressionGzip:
		return ".json.gz", nil
	case pipelines.CompressionZstd, pipelines.CompressionAuto, "":
		return ".json.zst", nil
	default:
		return "", fmt.Errorf("JSON lines cannot be compressed with %s: use zstd, gzip or none", d.Compression)
	}
}

// Check makes the directory if need be, tries it with a file, and reads the columns of what it holds.
func (s *Sink) Check(context.Context) (sinks.Destination, error) {
	d := sinks.Destination{
		Server:       s.spec.Directory.Path,
		Schema:       s.hash,
		DropsRepeats: true,
		Guarantee:    "exactly once: a claim is one file, and a name is given once",
	}
	if path, err := filepath.Abs(s.spec.Directory.Path); err == nil {
		d.Server = path
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
	if s.spec.Directory.Format == pipelines.FormatParquet {
		return newParquetBlock(columns, known, s.currentSchema), nil
	}
	return newJSONBlock(columns), nil
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

// Stored lists the directory: what finished files of the topic hold counts as stored by the range in their names. It removes unfinished files of the
// partition, for none of them can be the caller's.
func (s *Sink) Stored(ctx context.Context, c sinks.Claim) (sinks.Stored, error) {
	stored := sinks.Stored{Max: -1, MaxUnknown: -1}
	dir, _ := s.state()
	names, err := dir.List()
	if errors.Is(err, fs.ErrNotExist) { // an error while the directory is made again is Check's
		if _, err = s.Check(ctx); err == nil {
			s.log.Warn("the directory was removed while rows were written to it, and is made again, empty", "directory", s.spec.Directory.Path)
		}
	}
	if err != nil {
		return stored, err
	}
	for _, name := range names {
		if final, ok := finalOf(name); ok {
			if err := s.removeLeftover(dir, name, final, c); err != nil {
				return stored, err
			}
			continue
		}
		n, ok := parseFileName(name)
		unknown := n.id == sinks.TopicID{}
		if !ok || n.topic != c.Topic || n.partition != c.Partition || n.id != c.TopicID && !unknown {
			continue
		}
		stored.Max = max(stored.Max, n.hi)
		if unknown {
			stored.MaxUnknown = max(stored.MaxUnknown, n.hi)
		}
		if r := (sinks.Range{Lo: max(n.lo, c.Lo), Hi: min(n.hi, c.Hi)}); r.Lo <= r.Hi {
			stored.Present = append(stored.Present, r)
		}
	}
	stored.Present = merge(stored.Present)
	stored.Mend = fmt.Sprintf("in %s, give the files %s-%d-LO-HI%s their topic's ID, as %s-%d-ID-LO-HI%s: this one's if they are of this topic, any other 32 "+
		"hexadecimal digits if they are of an earlier one; or move them elsewhere; or commit a position for the group",
		s.spec.Directory.Path, c.Topic, c.Partition, s.extension, c.Topic, c.Partition, s.extension)
	return stored, nil
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

// encodable is a block that knows how to write itself.
type encodable interface {
	sinks.Block
	// prepare settles the schema; encode writes the file under it.
	prepare(s *Sink) error
	encode(w io.Writer, compression pipelines.Compression) error
}

// Write makes the claim's file.
func (s *Sink) Write(ctx context.Context, b *sinks.Batch) error {
	dir, _ := s.state()
	final := s.fileName(b.Claim).String()
	if done, err := exists(dir, final); done || err != nil {
		return err
	}
	block := b.Block.(encodable)
	if err := block.prepare(s); err != nil {
		return err
	}
	temporary := s.temporaryName(final)
	if err := s.writeFile(ctx, dir, temporary, block); err != nil {
		if errors.Is(err, fs.ErrNotExist) { // the directory is gone, and its schema with it
			return errors.Join(sinks.ErrSchemaChanged, err)
		}
		return errors.Join(err, removeIfThere(dir, temporary))
	}
	err := dir.Publish(temporary, final)
	if errors.Is(err, fs.ErrExist) { // the claim was stored by another worker in between
		return removeIfThere(dir, temporary)
	}
	return err
}

func exists(dir FS, name string) (bool, error) {
	f, err := dir.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return true, f.Close()
}

func removeIfThere(dir FS, name string) error {
	if err := dir.Remove(name); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// writeFile writes, syncs and closes the temporary file.
func (s *Sink) writeFile(ctx context.Context, dir FS, name string, block encodable) error {
	f, err := dir.Create(name)
	if err != nil {
		return err
	}
	w := bufio.NewWriterSize(f, writeBufferBytes)
	err = block.encode(w, s.spec.Directory.Compression)
	if err == nil {
		err = w.Flush()
	}
	if err == nil {
		err = f.Sync()
	}
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = ctx.Err() // past the deadline another worker may have the partition
	}
	return err
}

// Close does nothing: no file stays open between writes.
func (s *Sink) Close() error { return nil }
