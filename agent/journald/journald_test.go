//go:build unix

package journald

import (
	"fmt"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/sluice-io/sluice/agent/stream"
)

// kept takes entries, and remembers the cursor of each chunk.
type kept struct {
	entries []string
	cursors []string
	cut     int
}

func (k *kept) Take(o *stream.Offer) error {
	sum := o.Chunk.Skipped.Bytes()
	for i := range o.Chunk.Lines {
		l := &o.Chunk.Lines[i]
		k.entries = append(k.entries, string(o.Chunk.Value(l)))
		sum += int64(l.Next - l.Start)
		if l.Cut {
			k.cut++
		}
	}
	if sum != o.Chunk.Bytes() {
		return fmt.Errorf("%d of %d bytes are accounted for", sum, o.Chunk.Bytes())
	}
	k.cursors = append(k.cursors, o.Cursor)
	return nil
}

func (k *kept) Drop(string, int64, int64) {}

func TestEntriesAndTheirCursors(t *testing.T) {
	f := &Feed{cfg: Config{EntryBytesMax: 80}, cursor: "before"}
	text := `{"__CURSOR":"s=1;i=1","MESSAGE":"a"}
{"MESSAGE":"looks like \"__CURSOR\":\"fake\"","__CURSOR" : "s=1;i=2"}
{"MESSAGE":"` + strings.Repeat("x", 100) + `","__CURSOR":"s=1;i=3"}

{"MESSAGE":"torn","__CURSOR":"s=1;i=4"`
	var k kept
	if err := f.entries(iotest.OneByteReader(strings.NewReader(text)), &k); err != nil {
		t.Fatal(err)
	}
	if len(k.entries) != 3 || k.cut != 1 || len(k.entries[2]) != 80 {
		t.Errorf("%d entries, %d cut: %q", len(k.entries), k.cut, k.entries)
	}
	// The cursor of an entry that was cut is known, and what is torn will be asked for again.
	if got := strings.Join(k.cursors, " "); got != "s=1;i=1 s=1;i=2 s=1;i=3 s=1;i=3" || f.cursor != "s=1;i=3" {
		t.Errorf("cursors %s, then %s", got, f.cursor)
	}
}

func TestCursorOf(t *testing.T) {
	for in, want := range map[string]string{
		`{"__CURSOR":"a"}`: "a", `{"x":"y", "__CURSOR" : "b", "z":1}`: "b",
		`{"MESSAGE":"\"__CURSOR\":\"c\""}`: "", `{"__CURSOR":1}`: "", `{"__CURSOR":"open`: "", `{"__CURSOR":""}`: "", ``: "",
	} {
		if got, _ := CursorOf([]byte(in)); got != want {
			t.Errorf("%s: %q, want %q", in, got, want)
		}
	}
}

func TestArguments(t *testing.T) {
	f := &Feed{cfg: Config{Units: []string{"a", "b"}, Matches: []string{"_UID=0", "+", "PRIORITY=3"}, Boot: true, Directory: "/j"}, cursor: "s=1"}
	want := "--output=json --all --no-pager --quiet --directory=/j --after-cursor=s=1 --follow --no-tail --boot --unit=a --unit=b _UID=0 + PRIORITY=3"
	if got := strings.Join(f.arguments(), " "); got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
}
