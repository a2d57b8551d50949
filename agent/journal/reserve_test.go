package journal

import (
	"bytes"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/sluice-io/sluice/internal/quickio"
)

// smallDisk is a disk of so many bytes: what is written over takes none, and what is removed gives its own back.
type smallDisk struct {
	*memFS
	room int64
	size map[string]int64
}

func newSmallDisk(room int64) *smallDisk {
	return &smallDisk{memFS: newMemFS(), room: room, size: map[string]int64{}}
}

func (d *smallDisk) Create(name string) (File, error) {
	f, err := d.memFS.Create(name)
	d.size[name] = 0
	return &smallFile{File: f, disk: d, name: name}, err
}

func (d *smallDisk) Reuse(name, as string) (File, error) {
	f, err := d.memFS.Reuse(name, as)
	d.size[as] = d.size[name]
	delete(d.size, name)
	return &smallFile{File: f, disk: d, name: as}, err
}

func (d *smallDisk) Remove(name string) error {
	d.room += d.size[name]
	delete(d.size, name)
	return d.memFS.Remove(name)
}

func (d *smallDisk) Truncate(name string, size int64) error {
	d.room += d.size[name] - size
	d.size[name] = size
	return d.memFS.Truncate(name, size)
}

type smallFile struct {
	File
	disk *smallDisk
	name string
	at   int64
}

func (f *smallFile) Write(p []byte) (int, error) {
	fits := min(int64(len(p)), f.disk.size[f.name]-f.at+f.disk.room)
	n, err := f.File.Write(p[:fits])
	f.at += int64(n)
	if more := f.at - f.disk.size[f.name]; more > 0 {
		f.disk.size[f.name] += more
		f.disk.room -= more
	}
	if err == nil && n < len(p) {
		err = &os.PathError{Op: "write", Path: f.name, Err: syscall.ENOSPC}
	}
	return n, err
}

// A disk that the journal fills does not hold it for ever: acknowledgements are written on a full disk, and what they let go of takes the next bundles.
func TestJournalFillsTheDisk(t *testing.T) {
	disk := newSmallDisk(1 << 20)
	j, _ := mustOpen(t, disk, Config{SegmentBytes: 200 << 10})
	var open []ID
	written, full := 0, 0
	for full < 20 {
		b := batch(t, 0, 7, int32(written), 400)
		_, err := j.Append(Entry{Bundle: &Bundle{Ranges: []Range{piece("a", int64(written), int64(written+1))}, Batches: []*Batch{b}}})
		if err == nil {
			if j.Trouble() != nil {
				t.Fatal("a trouble that is over is told")
			}
			open = append(open, b.ID)
			written++
			continue
		}
		if !quickio.NoRoom(err) || j.Trouble() == nil {
			t.Fatalf("error %v, told as %v", err, j.Trouble())
		}
		if full++; len(open) == 0 {
			t.Fatalf("nothing could be written after the disk was full %d times", full)
		}
		for _, id := range open {
			mustAppend(t, j, Entry{Ack: &Ack{TopicID: TopicID{1}, NextOffset: int64(written), IDs: []ID{id}}})
		}
		open = open[:0]
		for range 2 { // the two newest checkpoints
			if err := j.Release(j.Next()); err != nil {
				t.Fatal(err)
			}
		}
	}
	t.Logf("%d bundles written, %d bytes left", written, disk.room)
	if written < 200 {
		t.Errorf("only %d bundles", written)
	}
}

// An agent starts on a disk that its journal has filled, settles what is there, and goes on.
func TestStartOnAFullDisk(t *testing.T) {
	disk := newSmallDisk(1 << 20)
	j, _ := mustOpen(t, disk, Config{SegmentBytes: 200 << 10})
	for i := 0; ; i++ {
		b := batch(t, 0, 7, int32(i), 400)
		if _, err := j.Append(Entry{Bundle: &Bundle{Batches: []*Batch{b}}}); err != nil {
			break
		}
	}
	disk.room = 0
	_ = j.Close()
	j, loaded := mustOpen(t, disk, Config{})
	var ids []ID
	for _, b := range loaded.Unsettled {
		ids = append(ids, b.ID)
	}
	if len(ids) < 20 {
		t.Fatalf("%d batches found, %+v, %v", len(ids), loaded, disk.size)
	}
	next := Entry{Bundle: &Bundle{Batches: []*Batch{batch(t, 0, 8, 0, 400)}}}
	if _, err := j.Append(next); !quickio.NoRoom(err) {
		t.Fatalf("error %v", err)
	}
	mustAppend(t, j, Entry{Settled: &Settled{Outcome: Unknown, IDs: ids}})
	if err := j.Release(j.Next()); err != nil {
		t.Fatal(err)
	}
	mustAppend(t, j, next)
	_ = j.Close()
	if _, loaded := mustOpen(t, disk, Config{From: next.Bundle.Batches[0].ID.Entry}); len(loaded.Unsettled) != 1 {
		t.Errorf("%d batches found", len(loaded.Unsettled))
	}
}

// What is no file of zeros is no reserve: it was a segment once.
func TestReserveThatWasASegment(t *testing.T) {
	fs := newMemFS()
	j, _ := mustOpen(t, fs, Config{})
	mustAppend(t, j, Entry{Bundle: &Bundle{Batches: []*Batch{batch(t, 0, 7, 0, 1)}}})
	old := filepath.Join("/journal", j.segments[0].name)
	_ = j.Close()
	if err := fs.mem.Rename(old, filepath.Join("/journal", reserveName)); err != nil {
		t.Fatal(err)
	}
	j, _ = mustOpen(t, fs, Config{})
	data, err := j.slurp(reserveName, -1)
	if err != nil || len(data) != reserveBytes || len(bytes.Trim(data, "\x00")) != 0 || !j.reserved {
		t.Errorf("a reserve of %d bytes, %v", len(data), err)
	}
}
