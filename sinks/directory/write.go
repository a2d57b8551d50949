package directory

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"

	"github.com/sluice-io/sluice/pipelines"
	"github.com/sluice-io/sluice/sinks"
)

// encodable is a block that knows how to write itself.
type encodable interface {
	sinks.Block
	// prepare settles the schema.
	prepare(s *Sink) error
	// placed says where its rows go.
	placed() *placer
	// encode writes the file of a group of rows, nil for all.
	encode(w io.Writer, f *pipelines.Files, rows []int32) error
}

// stagedClaim is a claim whose files are written under temporary names.
type stagedClaim struct {
	identity string
	basis    int64 // the watermark by which its rows were placed
	files    []move
	parts    []timePartition // those the files belong to
	latest   int64           // timestamp of its records
}

// errUnread has the worker ask what is stored, and so read the ledger, before it writes.
var errUnread = errors.New("what is stored of the partition has to be read again first")

// Write makes the claim's files, and stores them all by one entry in the partition's ledger.
//
// The files are written whole even when the deadline passes meanwhile, and kept for the next try: they are nothing until the entry is made, and a deadline that is
// shorter than a file takes must not keep it from ever being stored. Whoever makes the entry owns the partition, whatever the clocks say.
func (s *Sink) Write(ctx context.Context, b *sinks.Batch) error {
	dir, _ := s.state()
	l := s.ledger(b.Claim.Topic, b.Claim.Partition, b.Claim.TopicID)
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.loaded {
		return errUnread
	}
	if r := within(l.entry.Stored, b.Claim); len(r) == 1 && r[0] == (sinks.Range{Lo: b.Claim.Lo, Hi: b.Claim.Hi}) {
		return nil
	}
	staged, err := s.stage(ctx, dir, l, b)
	if errors.Is(err, fs.ErrNotExist) { // the directory is gone, and its schema with it
		l.loaded, l.staged = false, nil
		return errors.Join(sinks.ErrSchemaChanged, err)
	}
	if err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("the files are written, and stored with the next try: %w", err)
	}
	if err := l.append(dir, s.entryWith(dir, l, staged, b.Claim)); err != nil {
		if errors.Is(err, errOvertaken) {
			l.staged = nil // removed by the new owner, or by us when we take over again
		}
		return err
	}
	l.staged = nil
	return l.moveFiles(dir)
}

// entryWith is the entry that stores a claim. The caller holds l.mu.
func (s *Sink) entryWith(dir FS, l *ledger, c *stagedClaim, claim sinks.Claim) ledgerEntry {
	return ledgerEntry{
		Files:     c.files,
		Stored:    addSpan(l.entry.Stored, claim.Lo, claim.Hi),
		Watermark: max(l.entry.Watermark, c.latest),
		Unmarked:  s.marked.without(dir, l.entry.Unmarked, c.parts, l.entry.Watermark-s.lateness()),
	}
}

// lateness is how long after its end a time partition still takes rows, in milliseconds.
func (s *Sink) lateness() int64 {
	if p := s.files.Partition; p != nil {
		return p.Lateness.Milliseconds()
	}
	return 0
}

// stage writes the claim's files under temporary names, unless a try before has. The caller holds l.mu.
func (s *Sink) stage(ctx context.Context, dir FS, l *ledger, b *sinks.Batch) (*stagedClaim, error) {
	block := b.Block.(encodable)
	places := block.placed()
	if c := l.staged; c != nil && c.identity == b.Identity && c.basis == places.basis {
		return c, nil
	}
	if places.basis != l.entry.Watermark && places.decidesLate() {
		return nil, sinks.ErrSchemaChanged // rows were placed by another watermark
	}
	if err := block.prepare(s); err != nil {
		return nil, err
	}
	c := &stagedClaim{identity: b.Identity, basis: places.basis, latest: places.latest}
	name := s.fileName(b.Claim).String()
	for i := range places.groups {
		g := &places.groups[i]
		if len(places.groups) > 1 && len(g.rows) == 0 { // of a row that was refused after all
			continue
		}
		temporary := s.temporaryName(name)
		c.files = append(c.files, move{From: temporary, To: path.Join(g.path, name)})
		if g.part.Dir != "" {
			c.parts = append(c.parts, g.part)
		}
		err := s.writeFile(dir, path.Join(l.dir, temporary), block, g.rows)
		if err == nil && errors.Is(ctx.Err(), context.Canceled) {
			err = ctx.Err()
		}
		if err != nil {
			return nil, errors.Join(err, removeFiles(dir, l.dir, c.files))
		}
	}
	l.staged = c
	return c, nil
}

// removeFiles removes what was written in vain. That it cannot is of no weight: the next entry of the ledger has the rest removed.
func removeFiles(dir FS, at string, files []move) error {
	for _, m := range files {
		if err := removeIfThere(dir, path.Join(at, m.From)); err != nil {
			return err
		}
	}
	return nil
}

// writeFile writes and closes a file of rows.
func (s *Sink) writeFile(dir FS, name string, block encodable, rows []int32) error {
	f, err := dir.Create(name)
	if err != nil {
		return err
	}
	w := bufio.NewWriterSize(f, writeBufferBytes)
	err = block.encode(w, s.files, rows)
	if err == nil {
		err = w.Flush()
	}
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	return err
}

// Close ends the connections of the file system, if it has any. No file stays open between writes.
func (s *Sink) Close() error {
	dir, _ := s.state()
	if c, ok := dir.(io.Closer); ok {
		return c.Close()
	}
	return nil
}
