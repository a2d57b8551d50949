package directory

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/sluice-io/sluice/sinks"
)

// controlDir holds the ledgers: a directory for each partition.
const controlDir = "_sluice"

const (
	entryPrefix = "entry-"
	entryFile   = "entry.json"
	// rangesMax bounds the stored ranges of an entry. They are many only where claims had nothing to store; beyond it the oldest gaps are
	// taken for stored.
	rangesMax = 1000
)

// errOvertaken says that another worker has written to the partition's ledger since this one read it.
var errOvertaken = errors.New("another worker has taken the partition over")

// ledgerEntry is the state of one partition. The newest entry is the whole truth; it is a directory that holds one file, since of two renames to the
// name of a directory that is not empty one alone can succeed, on every file system.
type ledgerEntry struct {
	Writer string `json:"writer"` // a process
	Nonce  int64  `json:"nonce"`  // tells the entries of a process apart

	// The claim's files: where they were written, and where they belong. Whoever reads the entry moves those that are not there yet.
	Files []move `json:"files,omitempty"`
	// Stored are the offsets that are in files, those of this entry included: ascending, apart from each other.
	Stored []span `json:"stored"`

	// The latest timestamp of the records stored so far, in milliseconds, or a time at which the log held no others.
	Watermark int64 `json:"watermark_ms"`
	// Unmarked are the time partitions that hold rows of this partition and are not known to have their marker.
	Unmarked []timePartition `json:"unmarked,omitempty"`
}

type move struct {
	From string `json:"from"` // in the ledger's directory
	To   string `json:"to"`
}

type span struct {
	Lo int64 `json:"lo"`
	Hi int64 `json:"hi"`
}

// timePartition is a directory that gets a success marker.
type timePartition struct {
	Dir string `json:"dir"`
	End int64  `json:"end_ms"` // of its time
}

// ledger is the state of one partition in the file system, and what this process knows of it. Each entry follows the one that its writer has read, so
// a worker that has lost the partition and does not know it cannot add one.
type ledger struct {
	sink      *Sink
	dir       string
	topic     string
	partition int32
	id        sinks.TopicID

	watermark atomic.Int64 // that of entry

	mu     sync.Mutex // guards what follows; held over reads and writes of the ledger, and of the partition's files
	loaded bool
	seq    int64 // of entry; 0: there is none
	entry  ledgerEntry
	// staged is the claim whose files are written and not known to be in an entry; nil when there is none.
	staged *stagedClaim
}

func ledgerDir(topic string, partition int32, id sinks.TopicID) string {
	return fmt.Sprintf("%s/%s-%d-%s", controlDir, topic, partition, id)
}

func entryName(seq int64) string { return fmt.Sprintf("%s%020d", entryPrefix, seq) }

func parseEntryName(name string) (seq int64, ok bool) {
	digits, ok := strings.CutPrefix(name, entryPrefix)
	if !ok || len(digits) != 20 {
		return 0, false
	}
	seq, err := strconv.ParseInt(digits, 10, 64)
	return seq, err == nil && seq > 0
}

// newestEntry reads the newest entry of a ledger's directory, and returns what else is there. seq is 0 when there is none.
func newestEntry(f FS, dir string) (entry ledgerEntry, seq int64, names []Entry, err error) {
	for range readTries {
		names, err = f.List(dir)
		if errors.Is(err, fs.ErrNotExist) {
			return ledgerEntry{}, 0, nil, nil
		}
		if err != nil {
			return entry, 0, nil, fmt.Errorf("list %s: %w", dir, err)
		}
		if seq = newestOf(names); seq == 0 {
			return ledgerEntry{}, 0, names, nil
		}
		entry, err = readEntry(f, path.Join(dir, entryName(seq)))
		if !errors.Is(err, fs.ErrNotExist) { // else a newer one took its place between the two looks
			return entry, seq, names, err
		}
	}
	return entry, 0, nil, err
}

// readTries is how often an entry may be replaced while it is looked for.
const readTries = 5

func newestOf(names []Entry) (newest int64) {
	for _, e := range names {
		if seq, ok := parseEntryName(e.Name); ok && e.Dir {
			newest = max(newest, seq)
		}
	}
	return newest
}

func readEntry(f FS, dir string) (entry ledgerEntry, err error) {
	name := path.Join(dir, entryFile)
	r, err := f.Open(name)
	if err != nil {
		return entry, err
	}
	defer r.Close()
	text, err := io.ReadAll(r)
	if err == nil {
		err = json.Unmarshal(text, &entry)
	}
	if err != nil {
		err = fmt.Errorf("read %s: %w", name, err)
	}
	return entry, err
}

// takeOver makes the partition this process's own: it reads the newest entry, ends the moves of its files and, where another process wrote it, adds one
// in its own name. From then on no other can, and what others left unfinished is removed. The caller holds mu.
func (l *ledger) takeOver(f FS) error {
	entry, seq, _, err := newestEntry(f, l.dir)
	if err != nil {
		return err
	}
	l.loaded, l.seq, l.entry = true, seq, entry
	l.watermark.Store(entry.Watermark)
	if err := l.moveFiles(f); err != nil {
		return err
	}
	if seq > 0 && entry.Writer == l.sink.writer {
		return nil
	}
	next := entry
	next.Files = nil
	if seq == 0 {
		if next.Stored, err = l.sink.storedByNames(f, l); err != nil {
			return err
		}
	}
	return l.append(f, next)
}

// moveFiles moves the files of the newest entry to where they belong. One that is not there any more was moved before.
func (l *ledger) moveFiles(f FS) error {
	for _, m := range l.entry.Files {
		err := f.Rename(path.Join(l.dir, m.From), m.To)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			l.loaded = false // read again before anything else
			return fmt.Errorf("move a finished file to %s: %w", m.To, err)
		}
	}
	return nil
}

// append adds an entry. After errOvertaken the entry is not in the ledger and never will be; after any other error it may be. The caller holds mu.
func (l *ledger) append(f FS, next ledgerEntry) error {
	next.Writer, next.Nonce = l.sink.writer, l.sink.attempts.Add(1)
	temporary := path.Join(l.dir, l.sink.temporaryName("entry"))
	to := path.Join(l.dir, entryName(l.seq+1))
	if err := writeEntry(f, path.Join(temporary, entryFile), next); err != nil {
		return errors.Join(fmt.Errorf("write %s: %w", to, err), removeIfThere(f, temporary))
	}
	l.loaded = false
	if err := l.publish(f, temporary, to, next.Nonce); err != nil {
		return err
	}
	names, err := f.List(l.dir)
	if err != nil {
		return fmt.Errorf("list %s: %w", l.dir, err)
	}
	if newestOf(names) != l.seq+1 { // our name was free only because it is long gone
		return errOvertaken
	}
	l.loaded, l.seq, l.entry = true, l.seq+1, next
	l.watermark.Store(next.Watermark)
	return l.tidy(f, names)
}

func (l *ledger) publish(f FS, temporary, to string, nonce int64) error {
	err := f.Rename(temporary, to)
	if err == nil {
		return nil
	}
	there, readErr := readEntry(f, to)
	switch {
	case readErr == nil && there.Writer == l.sink.writer && there.Nonce == nonce: // the answer was lost, not the rename
		return nil
	case readErr == nil:
		return errors.Join(errOvertaken, removeIfThere(f, temporary))
	}
	return fmt.Errorf("publish %s: %w", to, err)
}

func writeEntry(f FS, name string, entry ledgerEntry) error {
	text, err := json.Marshal(entry)
	if err != nil {
		return err
	}
	return writeWhole(f, name, append(text, '\n'))
}

// writeWhole writes and closes a small file.
func writeWhole(f FS, name string, text []byte) error {
	file, err := f.Create(name)
	if err != nil {
		return err
	}
	_, err = file.Write(text)
	return errors.Join(err, file.Close())
}

// tidy removes older entries, all but the last before the newest, which keeps those that lag from taking its name, and the temporary files that neither the newest
// entry nor a claim of this process needs. Since the newest entry is ours, no other process can name one any more.
func (l *ledger) tidy(f FS, names []Entry) error {
	needed := map[string]bool{}
	for _, m := range l.entry.Files {
		needed[m.From] = true
	}
	if l.staged != nil {
		for _, m := range l.staged.files {
			needed[m.From] = true
		}
	}
	for _, e := range names {
		seq, isEntry := parseEntryName(e.Name)
		_, temporary := finalOf(e.Name)
		if isEntry && seq < l.seq-1 || temporary && !needed[e.Name] {
			if err := removeIfThere(f, path.Join(l.dir, e.Name)); err != nil {
				return fmt.Errorf("remove what an earlier worker left: %w", err)
			}
		}
	}
	return nil
}

// addSpan adds a range to ranges that are ascending and apart, and keeps them so.
func addSpan(spans []span, lo, hi int64) []span {
	out := make([]span, 0, len(spans)+1)
	placed := false
	for _, s := range spans {
		switch {
		case s.Hi+1 < lo:
			out = append(out, s)
		case hi+1 < s.Lo:
			if !placed {
				out, placed = append(out, span{lo, hi}), true
			}
			out = append(out, s)
		default:
			lo, hi = min(lo, s.Lo), max(hi, s.Hi)
		}
	}
	if !placed {
		out = append(out, span{lo, hi})
	}
	if n := len(out); n > rangesMax { // the oldest become one
		out[n-rangesMax] = span{out[0].Lo, out[n-rangesMax].Hi}
		out = out[n-rangesMax:]
	}
	return out
}

// within is what of the spans lies in a claim's range.
func within(spans []span, c sinks.Claim) (out []sinks.Range) {
	for _, s := range spans {
		if r := (sinks.Range{Lo: max(s.Lo, c.Lo), Hi: min(s.Hi, c.Hi)}); r.Lo <= r.Hi {
			out = append(out, r)
		}
	}
	return out
}

func removeIfThere(f FS, name string) error {
	if err := f.Remove(name); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
