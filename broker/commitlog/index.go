package commitlog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"sync"
)

const (
	offsetEntryBytes = 8  // int32 relative offset, int32 position
	timeEntryBytes   = 12 // int64 timestamp, int32 relative offset
	// indexPageBytes is read per lookup beyond the entries in memory. One entry
	// of each page stays in memory, so a full index costs 4 KiB of it.
	indexPageBytes = 4 << 10
	indexLoadBytes = 64 << 10
)

// indexPage is a buffer for one lookup.
type indexPage [indexPageBytes]byte

// errIndex says that an index file's content cannot be; it is rebuilt from the data.
var errIndex = errors.New("index is corrupt")

// indexEntry is one entry of either index: of the offset index the last offset
// of a batch relative to the segment's base, and the batch's position; of the
// time index the largest timestamp so far, and the relative last offset of the
// first batch that has it. Both grow from entry to entry.
type indexEntry struct {
	key int64
	val int32
}

// index is the offset or the time index of one segment: a prefix in its file,
// of which every page's first entry is in memory once it was looked at, and a
// tail in memory that is yet to be written. Safe for concurrent use; changes
// come from one goroutine at a time, under the log's append lock.
type index struct {
	file  *cachedFile
	width int

	// loadMu keeps concurrent readers from loading twice; taken before mu.
	loadMu sync.Mutex

	mu      sync.RWMutex
	loaded  bool
	written int          // entries in the file
	samples []indexEntry // every page's first entry, of those in the file
	tail    []indexEntry // entries behind those in the file
	last    indexEntry   // of all; valid when lastKnown and not empty
	// lastKnown is set by loading, by the first append, and by readLast.
	lastKnown bool
}

// newIndex is the index whose file holds size bytes. An index without a file is
// complete at once.
func newIndex(file *cachedFile, width int, size int64) *index {
	n := int(size) / width
	return &index{file: file, width: width, written: n, loaded: n == 0, lastKnown: n == 0}
}

func (x *index) pageEntries() int { return indexPageBytes / x.width }

// count is the number of entries.
func (x *index) count() int {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.written + len(x.tail)
}

// bytes is the size that the file has once everything is written.
func (x *index) bytes() int64 { return int64(x.count()) * int64(x.width) }

// append adds an entry, which must be larger than the last in both fields.
func (x *index) append(e indexEntry) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.tail = append(x.tail, e)
	x.last, x.lastKnown = e, true
}

// lastEntry returns the last entry; none when the index is empty.
func (x *index) lastEntry() (e indexEntry, ok bool, err error) {
	x.mu.RLock()
	e, known, empty := x.last, x.lastKnown, x.written+len(x.tail) == 0
	x.mu.RUnlock()
	if empty || known {
		return e, !empty, nil
	}
	return x.readLast()
}

// readLast reads the file's last entry, without loading the rest.
func (x *index) readLast() (e indexEntry, ok bool, err error) {
	x.loadMu.Lock()
	defer x.loadMu.Unlock()
	buf := make([]byte, x.width)
	if err := x.readAt(buf, x.written-1); err != nil {
		return indexEntry{}, false, err
	}
	e = x.decode(buf)
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.lastKnown {
		x.last, x.lastKnown = e, true
	}
	return x.last, true, nil
}

// floor returns the last entry whose key is at most key.
func (x *index) floor(key int64) (indexEntry, bool, error) {
	return x.search(func(e indexEntry) bool { return e.key <= key })
}

// floorVal returns the last entry whose value is at most val.
func (x *index) floorVal(val int64) (indexEntry, bool, error) {
	return x.search(func(e indexEntry) bool { return int64(e.val) <= val })
}

// search returns the last entry for which below holds; below holds for a prefix.
func (x *index) search(below func(indexEntry) bool) (indexEntry, bool, error) {
	x.mu.RLock()
	if e, ok := lastBelow(x.tail, below); ok || x.written == 0 {
		x.mu.RUnlock()
		return e, ok, nil
	}
	x.mu.RUnlock()
	if err := x.load(); err != nil {
		return indexEntry{}, false, err
	}
	x.mu.RLock()
	page := countBelow(x.samples, below) - 1
	n := min(x.pageEntries(), x.written-page*x.pageEntries())
	x.mu.RUnlock()
	if page < 0 || n <= 0 {
		return indexEntry{}, false, nil
	}
	return x.searchPage(page, n, below)
}

func (x *index) searchPage(page, n int, below func(indexEntry) bool) (indexEntry, bool, error) {
	buffer := x.file.cache.pages.Get().(*indexPage)
	defer x.file.cache.pages.Put(buffer)
	buf := buffer[:n*x.width]
	if err := x.readAt(buf, page*x.pageEntries()); err != nil {
		return indexEntry{}, false, err
	}
	lo, hi := 0, n
	for lo < hi {
		mid := int(uint(lo+hi) >> 1)
		if below(x.decode(buf[mid*x.width:])) {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if lo == 0 {
		return indexEntry{}, false, fmt.Errorf("%s: %w: page %d changed", x.file.path(), errIndex, page)
	}
	return x.decode(buf[(lo-1)*x.width:]), true, nil
}

// countBelow is the length of the prefix for which below holds.
func countBelow(entries []indexEntry, below func(indexEntry) bool) int {
	n, _ := slices.BinarySearchFunc(entries, true, func(e indexEntry, _ bool) int {
		if below(e) {
			return -1
		}
		return 1
	})
	return n
}

func lastBelow(entries []indexEntry, below func(indexEntry) bool) (indexEntry, bool) {
	if n := countBelow(entries, below); n > 0 {
		return entries[n-1], true
	}
	return indexEntry{}, false
}

// load reads the file once, checks that its entries grow and keeps the samples.
func (x *index) load() error {
	x.loadMu.Lock()
	defer x.loadMu.Unlock()
	x.mu.RLock()
	loaded, n := x.loaded, x.written
	x.mu.RUnlock()
	if loaded {
		return nil
	}
	samples, last, _, err := x.readSamples(n)
	if err != nil {
		return err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.samples, x.loaded = samples, true
	if !x.lastKnown {
		x.last, x.lastKnown = last, true
	}
	return nil
}

// readSamples reads the first n entries of the file and checks that they grow;
// good is how many do.
func (x *index) readSamples(n int) (samples []indexEntry, last indexEntry, good int, err error) {
	page := x.pageEntries()
	samples = make([]indexEntry, 0, n/page+1)
	buf := make([]byte, min(n*x.width, indexLoadBytes/x.width*x.width))
	for i := 0; i < n; {
		chunk := buf[:min(len(buf), (n-i)*x.width)]
		if err := x.readAt(chunk, i); err != nil {
			return samples, last, i, err
		}
		for ; len(chunk) > 0; chunk, i = chunk[x.width:], i+1 {
			e := x.decode(chunk)
			if e.val < 0 || i > 0 && (e.key <= last.key || e.val < last.val) {
				return samples, last, i, fmt.Errorf("%s: %w: entry %d does not follow the one before", x.file.path(), errIndex, i)
			}
			if i%page == 0 {
				samples = append(samples, e)
			}
			last = e
		}
	}
	return samples, last, n, nil
}

// loadGood is load for an index that was not closed properly: what follows its
// first bad entry is removed, from the file too. No reader may be about.
func (x *index) loadGood() error {
	samples, last, good, err := x.readSamples(x.written)
	if err != nil && !errors.Is(err, errIndex) {
		return err
	}
	x.mu.Lock()
	x.loaded, x.written, x.samples = true, good, samples
	x.last, x.lastKnown = last, true
	x.mu.Unlock()
	return x.truncateFile(good)
}

func (x *index) truncateFile(entries int) error {
	err := x.file.with(os.O_CREATE, func(f File) error { return f.Truncate(int64(entries) * int64(x.width)) })
	if err != nil {
		return fmt.Errorf("truncate %s: %w", x.file.path(), err)
	}
	return nil
}

// readAt reads entries from the i-th on to fill buf.
func (x *index) readAt(buf []byte, i int) error {
	err := x.file.with(0, func(f File) error {
		_, err := f.ReadAt(buf, int64(i)*int64(x.width))
		return err
	})
	if errors.Is(err, io.EOF) || errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s: %w: short or missing", x.file.path(), errIndex)
	}
	return err
}

func (x *index) decode(b []byte) indexEntry {
	if x.width == offsetEntryBytes {
		return indexEntry{int64(int32(binary.BigEndian.Uint32(b))), int32(binary.BigEndian.Uint32(b[4:]))}
	}
	return indexEntry{int64(binary.BigEndian.Uint64(b)), int32(binary.BigEndian.Uint32(b[8:]))}
}

func (x *index) encode(dst []byte, e indexEntry) []byte {
	if x.width == offsetEntryBytes {
		dst = binary.BigEndian.AppendUint32(dst, uint32(int32(e.key)))
	} else {
		dst = binary.BigEndian.AppendUint64(dst, uint64(e.key))
	}
	return binary.BigEndian.AppendUint32(dst, uint32(e.val))
}

// writeDue says whether the tail is a page long.
func (x *index) writeDue() bool {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return len(x.tail) >= x.pageEntries()
}

// writeOut writes the tail to the file, which it makes if need be. When it
// fails the tail stays and the next call writes it to the same place.
func (x *index) writeOut() error {
	x.mu.RLock()
	var buf []byte
	for _, e := range x.tail {
		buf = x.encode(buf, e)
	}
	at := int64(x.written) * int64(x.width)
	x.mu.RUnlock()
	err := x.file.with(os.O_CREATE, func(f File) error {
		if len(buf) == 0 {
			return nil
		}
		_, err := f.WriteAt(buf, at)
		return err
	})
	if err != nil {
		return fmt.Errorf("write %s: %w", x.file.path(), err)
	}
	x.moveTail()
	return nil
}

// moveTail counts the tail, now in the file, among the written entries.
func (x *index) moveTail() {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, e := range x.tail {
		if x.loaded && x.written%x.pageEntries() == 0 {
			x.samples = append(x.samples, e)
		}
		x.written++
	}
	x.tail = x.tail[:0]
}

// sync makes what is written durable.
func (x *index) sync() error {
	return x.file.with(os.O_CREATE, syncData)
}

// keep removes the entries after the first n, from the file too.
func (x *index) keep(n int) error {
	if n >= x.count() {
		return nil
	}
	x.mu.Lock()
	inFile := min(n, x.written)
	x.tail = x.tail[:n-inFile]
	x.written = inFile
	x.samples = x.samples[:min(len(x.samples), (inFile+x.pageEntries()-1)/x.pageEntries())]
	x.loaded = x.loaded || inFile == 0
	x.last, x.lastKnown = indexEntry{}, n == 0
	if n > inFile {
		x.last, x.lastKnown = x.tail[len(x.tail)-1], true
	}
	x.mu.Unlock()
	return x.truncateFile(inFile)
}

// keepWhile removes the entries from the first one on for which below does not hold.
func (x *index) keepWhile(below func(indexEntry) bool) error {
	n, err := x.countWhile(below)
	if err != nil {
		return err
	}
	return x.keep(n)
}

// countWhile is the length of the prefix for which below holds.
func (x *index) countWhile(below func(indexEntry) bool) (int, error) {
	if err := x.load(); err != nil {
		return 0, err
	}
	x.mu.RLock()
	defer x.mu.RUnlock()
	if n := countBelow(x.tail, below); n > 0 {
		return x.written + n, nil
	}
	page := countBelow(x.samples, below) - 1
	if page < 0 {
		return 0, nil
	}
	first := page * x.pageEntries()
	buf := make([]byte, min(x.pageEntries(), x.written-first)*x.width)
	if err := x.readAt(buf, first); err != nil {
		return 0, err
	}
	n := 0
	for n*x.width < len(buf) && below(x.decode(buf[n*x.width:])) {
		n++
	}
	return first + n, nil
}

// reset empties the index, whatever its file holds.
func (x *index) reset() error {
	x.mu.Lock()
	x.loaded, x.written, x.lastKnown, x.last = true, 0, true, indexEntry{}
	x.samples, x.tail = nil, nil
	x.mu.Unlock()
	return x.truncateFile(0)
}
