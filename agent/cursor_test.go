package agent

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The cursor of the journal is listed, exported, imported and reset as positions in files are.
func TestCursorsAreMoved(t *testing.T) {
	script, entries := spokenJournal(t)
	text := ""
	for i := range 5 {
		text += journalEntry(i, "a", 1, fmt.Sprint(i))
	}
	if err := os.WriteFile(entries, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	r := newRig(t, fmt.Sprintf("pipeline: test\ncollect: {journald: {command: [%q], start_at: beginning}}\nprocess: [{set: {m: MESSAGE}}]\ntopic: {name: lines}\n", script))
	stored := func(n int, last string) {
		t.Helper()
		r.eventually("the entries", func() bool { return r.store.count() == n })
		if got := r.store.values()[n-1]; !strings.Contains(got, `"MESSAGE":"`+last+`"`) {
			t.Errorf("the last is %s", got)
		}
	}
	r.start()
	stored(5, "4")
	r.settled()
	live := r.agent.Positions().Pipelines[0]
	if live.Input != "journald" || live.Cursor == nil || live.Cursor.Cursor != "s=1;i=4" || live.Journal == nil {
		t.Errorf("of the running agent: %+v", live)
	}
	r.halt()
	var document bytes.Buffer
	r.change(func(s *State) {
		p, err := s.Positions()
		if err != nil {
			t.Fatal(err)
		}
		if of := p.Pipelines[0]; of.Cursor.Cursor != "s=1;i=4" || of.Cursor.Count != 5 {
			t.Errorf("of the stopped agent: %+v", of)
		}
		if err := json.NewEncoder(&document).Encode(p); err != nil {
			t.Fatal(err)
		}
		if n, err := s.ResetCursor("", ResetToStart); n != 1 || err != nil {
			t.Errorf("%d reset, %v", n, err)
		}
		if _, err := s.ResetCursor("", "nowhere"); err == nil {
			t.Error("it was reset to nowhere")
		}
		if _, err := s.ResetCursor("other", ResetToEnd); err == nil {
			t.Error("of a pipeline that is not known")
		}
	})
	r.start()
	stored(10, "4")
	r.settled()
	r.halt()

	exported := document.String()
	r.state = t.TempDir()
	r.change(func(s *State) {
		p, err := ReadPositions(strings.NewReader(exported))
		if err != nil {
			t.Fatal(err)
		}
		for i, want := range []string{"", "has a cursor"} {
			results, err := s.Import(r.pipes(), p.Exported())
			if err != nil || len(results) != 1 || results[0].Cursor != "s=1;i=4" || (want == "") != (results[0].Refused == "") || !strings.Contains(results[0].Refused, want) {
				t.Errorf("import %d: %+v, %v", i, results, err)
			}
		}
		p.Pipelines[0].Pipeline = "other"
		if results, err := s.Import(r.pipes(), p.Exported()); err != nil || !strings.Contains(results[0].Refused, "no pipeline other") {
			t.Errorf("%+v, %v", results, err)
		}
	})
	if f, err := os.OpenFile(entries, os.O_APPEND|os.O_WRONLY, 0); err != nil {
		t.Fatal(err)
	} else if _, err := f.WriteString(journalEntry(5, "a", 1, "5")); err != nil || f.Close() != nil {
		t.Fatal(err)
	}
	r.start()
	stored(11, "5")
	r.settled()
	r.halt()
	r.change(func(s *State) {
		if n, err := s.ResetCursor("test", ResetForget); n != 1 || err != nil {
			t.Errorf("%d forgotten, %v", n, err)
		}
	})
	r.yaml = strings.Replace(r.yaml, "start_at: beginning", "ignore_older: 1h", 1)
	r.start()
	stored(17, "5")
	if since, err := os.ReadFile(filepath.Join(filepath.Dir(script), "since")); err != nil || !strings.HasPrefix(string(since), "--since=@") {
		t.Errorf("entries that are too old are not passed over: %q, %v", since, err)
	}
	r.settled()
	r.halt()
	r.change(func(s *State) {
		if n, err := s.ResetCursor("test", ResetToEnd); n != 1 || err != nil {
			t.Errorf("%d, %v", n, err)
		}
	})
}
