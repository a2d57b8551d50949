package directory

import (
	"errors"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/sluice-io/sluice/internal/testenv"
	"github.com/sluice-io/sluice/sinks"
)

// diskBytes is a disk for some claims of the test, and not for a large one.
const diskBytes = 1 << 20

// onDisk is a rig whose directory is on a disk of its own.
func onDisk(t *testing.T) (*rig, string) {
	t.Helper()
	if !testenv.CanMount() {
		t.Skip("mounts a file system: only root may")
	}
	disk := filepath.Join(t.TempDir(), "disk")
	testenv.SmallDisk(t, disk, diskBytes)
	r := &rig{TB: t, dir: filepath.Join(disk, "table")}
	r.pipe = pipeline(t, r.dir, jsonTopic, "    format: json\n    compression: none\n")
	r.restart()
	return r, disk
}

// try is store for a write that may fail: the worker keeps the claim and tries it again, the same.
func (r *rig) try(b sinks.Block, lo, hi int64) error {
	c := claim(lo, hi)
	if _, err := r.sink.Stored(r.Context(), c); err != nil {
		return err
	}
	return r.sink.Write(r.Context(), &sinks.Batch{Claim: c, Block: b, Identity: c.Identity()})
}

func (r *rig) wantRows(n int) {
	r.Helper()
	rows := r.rows()
	for i, row := range rows {
		if row.Offset != int64(i) {
			r.Fatalf("row %d has offset %d", i, row.Offset)
		}
	}
	if len(rows) != n {
		r.Fatalf("%d rows, want %d", len(rows), n)
	}
}

// TestFullDisk: no try stores a part or leaves anything behind that takes room, each says what is wrong, and once there is room the same claim is stored.
func TestFullDisk(t *testing.T) {
	r, disk := onDisk(t)
	r.write(0, `{"n":0}`, `{"n":1}`)
	value := `{"n":2,"pad":"` + strings.Repeat("x", 1000) + `"}`
	large := make([]string, 800) // most of the disk
	for i := range large {
		large[i] = value
	}
	b, _ := r.block(2, large...)
	empty := testenv.FillDisk(t, disk)
	for range 3 {
		if err := r.try(b, 2, 801); !errors.Is(err, syscall.ENOSPC) {
			t.Fatalf("with a full disk: %v", err)
		}
		r.wantRows(2)
	}
	empty()
	if err := r.try(b, 2, 801); err != nil {
		t.Fatal(err)
	}
	r.wantRows(802)

	// The next is larger than what is left: it fails in the middle, and what it wrote is gone.
	next, _ := r.block(802, large...)
	for range 3 {
		if err := r.try(next, 802, 1601); !errors.Is(err, syscall.ENOSPC) {
			t.Fatalf("with too little room: %v", err)
		}
		r.wantRows(802)
	}
	small, _ := r.block(802, value)
	if err := r.try(small, 802, 802); err != nil {
		t.Fatalf("the room of the failed tries is not free: %v", err)
	}
	r.wantRows(803)
}

// TestReadOnlyDisk: a disk that the kernel has made read-only holds the claim until it is mended.
func TestReadOnlyDisk(t *testing.T) {
	r, disk := onDisk(t)
	r.write(0, `{"n":0}`)
	b, _ := r.block(1, `{"n":1}`)
	remount := func(flags uintptr) {
		t.Helper()
		if err := syscall.Mount("", disk, "tmpfs", syscall.MS_REMOUNT|flags, ""); err != nil {
			t.Fatal(err)
		}
	}
	remount(syscall.MS_RDONLY)
	for range 2 {
		if err := r.try(b, 1, 1); !errors.Is(err, syscall.EROFS) {
			t.Fatalf("with a read-only disk: %v", err)
		}
		r.wantRows(1)
	}
	if _, err := r.sink.Check(t.Context()); !errors.Is(err, syscall.EROFS) || !strings.Contains(err.Error(), r.dir) {
		t.Errorf("a start says %v", err)
	}
	remount(0)
	if err := r.try(b, 1, 1); err != nil {
		t.Fatal(err)
	}
	r.wantRows(2)
}
