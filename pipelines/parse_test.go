package pipelines

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/cockroachdb/datadriven"
)

// TestParse checks what Parse makes of a file, and the words of every error.
// Commands: parse (the pipelines or the errors), run (a line through the
// stages of the pipeline parsed last), tests (the tests of the file).
func TestParse(t *testing.T) {
	datadriven.Walk(t, "testdata/parse", func(t *testing.T, path string) {
		var last *Pipeline
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			if d.Cmd != "parse" && last == nil {
				return "no pipeline"
			}
			switch d.Cmd {
			case "parse":
				last = nil
				pipes, err := Parse("p.yaml", []byte(d.Input))
				if err != nil {
					var list ErrorList
					if !errors.As(err, &list) {
						t.Errorf("not an ErrorList: %T", err)
					}
					return err.Error()
				}
				last = pipes[len(pipes)-1]
				return describePipelines(pipes)
			case "tests":
				return describeResults(RunTests(last))
			case "run":
				return describeRun(t, last, d.Input)
			}
			t.Fatalf("unknown command %s", d.Cmd)
			return ""
		})
	})
}

func describeFiles(f *Files) string {
	s := fmt.Sprintf("%s %s %s groups of %d modes %o %o", f.Path, f.Format, f.Compression, f.RowGroupRows, f.FileMode, f.DirMode)
	if p := f.Partition; p != nil {
		s += fmt.Sprintf(" by %q in %s (unit %q) late after %s: %s", p.Path.Text, p.Zone, strings.Trim(string(rune(p.Path.Unit)), "\x00"), p.Lateness, p.Late)
		if p.LatePath != nil {
			s += fmt.Sprintf(" %q", p.LatePath.Text)
		}
		s += fmt.Sprintf(" success %t paths %d", p.Success, p.PathsMax)
	}
	return s
}

func describePipelines(pipes []*Pipeline) string {
	var b strings.Builder
	for _, p := range pipes {
		fmt.Fprintf(&b, "%s: topic %s (%s, partitions %d, replicas %d, %s, %v) errors %s %q\n", p.Name,
			p.Topic.Name, p.Topic.Value, p.Topic.Partitions, p.Topic.Replicas, p.Topic.Compression, p.Topic.Config, p.Errors.Parse, p.Errors.DeadLetter)
		if p.Brokers != nil {
			fmt.Fprintf(&b, "  brokers %v tls %+v sasl %+v\n", p.Brokers.Addr, p.Brokers.TLS, p.Brokers.SASL)
		}
		if p.Collect != nil {
			fmt.Fprintf(&b, "  collect %s labels %v\n", describeInput(p.Collect), p.Collect.Labels)
		}
		for _, s := range p.Process {
			fmt.Fprintf(&b, "  process %s\n", s.text())
		}
		for _, s := range p.Sinks {
			fmt.Fprintf(&b, "  sink %s batch %d %d %s", s.Group(), s.Batch.Rows, s.Batch.Bytes, s.Batch.Age)
			if s.ClickHouse != nil {
				c := *s.ClickHouse
				fmt.Fprintf(&b, " clickhouse %v %s.%s as %s %s tls %t", c.Addr, c.Database, c.Table, c.Username, c.Password, c.TLS != nil)
			}
			if s.Directory != nil {
				fmt.Fprintf(&b, " directory %s sync %t", describeFiles(s.Files()), s.Directory.Sync)
			}
			if h := s.HDFS; h != nil {
				fmt.Fprintf(&b, " hdfs %v %s user %q kerberos %+v replication %d block %d timeout %s hostnames %t",
					h.NameNodes, describeFiles(s.Files()), h.User, h.Kerberos, h.Replication, h.BlockSize, h.Timeout, h.UseHostnames)
			}
			b.WriteString("\n")
			c, err := s.NewColumns()
			if err != nil {
				fmt.Fprintf(&b, "  columns: %v\n", err)
				continue
			}
			for i, name := range c.Names() {
				fmt.Fprintf(&b, "    %s %s\n", name, c.Kind(i))
			}
		}
	}
	return b.String()
}

func describeInput(c *Collect) string {
	switch c.Input() {
	case "stdin":
		return fmt.Sprintf("stdin %+v", *c.Stdin)
	case "pipe":
		return fmt.Sprintf("pipe %+v", *c.Pipe)
	case "exec":
		return fmt.Sprintf("exec %+v", *c.Exec)
	case "syslog":
		s := *c.Syslog
		return fmt.Sprintf("syslog %v %s zone %s tls %+v connections %d idle %s buffer %d mode %o options %+v",
			s.Listen, s.Format, s.Zone, s.TLS, s.ConnectionsMax, s.IdleTimeout, s.ReceiveBuffer, s.SocketMode, s.InputOptions)
	case "journald":
		j := *c.Journald
		j.Pos = Pos{}
		return fmt.Sprintf("journald %+v", j)
	}
	return fmt.Sprintf("%+v", *c.File)
}

func describeResults(results []TestResult) string {
	var b strings.Builder
	for i, r := range results {
		if r.Err == nil {
			fmt.Fprintf(&b, "tests[%d]: ok\n", i)
			continue
		}
		fmt.Fprintln(&b, r.Err)
	}
	return b.String()
}

// describeRun shows the event that comes out of each line, and the row of the first sink.
func describeRun(t *testing.T, p *Pipeline, input string) string {
	chain, err := p.NewProcess()
	if err != nil {
		t.Fatal(err)
	}
	key, err := p.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	e := new(Event)
	for line := range strings.SplitSeq(input, "\n") {
		e.Reset([]byte(line))
		e.Meta = Meta{Topic: p.Topic.Name, Headers: []Header{{"host", []byte("web-1")}, {"path", []byte("/var/log/a.log")}}}
		r := chain.Apply(e)
		if r.Outcome != Keep {
			fmt.Fprintf(&b, "%s by %s (%s): %v\n", r.Outcome, r.Stage, r.Reason, r.Err)
			continue
		}
		if !e.Parsed() {
			fmt.Fprintf(&b, "raw %s", e.Raw)
		} else {
			b.Write(e.AppendJSON(nil))
		}
		if key != nil {
			var v Value
			if err := key.Eval(e, &v); err != nil {
				fmt.Fprintf(&b, " key error %v", err)
			} else {
				fmt.Fprintf(&b, " key %s", v.AppendText(nil))
			}
		}
		b.WriteString("\n")
	}
	return b.String()
}

func TestParseRefusesWhatWouldHang(t *testing.T) {
	start := "pipeline: x\ntests: "
	if _, err := Parse("p.yaml", []byte(start+strings.Repeat("[", 50_000))); err == nil || !strings.Contains(err.Error(), "p.yaml:2:1: brackets are nested deeper than 200 levels") {
		t.Errorf("deep nesting: %v", err)
	}
	fifo := filepath.Join(t.TempDir(), "p.yaml")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Skip("no named pipes here: ", err)
	}
	if _, err := Load(fifo); err == nil || !strings.Contains(err.Error(), "neither a file nor a directory") {
		t.Errorf("a pipe: %v", err)
	}
}
