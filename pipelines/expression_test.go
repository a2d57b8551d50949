package pipelines

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
)

// TestExpressions evaluates expressions, one a line, on the event of the last
// `event` command. Where a condition has a fast path, both must agree.
func TestExpressions(t *testing.T) {
	e := new(Event)
	datadriven.RunTest(t, "testdata/expressions", func(t *testing.T, d *datadriven.TestData) string {
		var b strings.Builder
		switch d.Cmd {
		case "event", "raw":
			e.Reset([]byte(d.Input))
			e.Meta = Meta{
				Topic: "access", Partition: 3, Offset: 42, Key: []byte("k"), Time: time.Date(2026, 11, 30, 10, 0, 0, 0, time.UTC),
				Headers: []Header{{"host", []byte("web-1")}, {"path", []byte("/var/log/a.log")}, {"site", []byte("shop")}},
			}
			if d.Cmd == "event" {
				if err := e.DecodeJSON(e.Raw); err != nil {
					return err.Error()
				}
			}
			return "ok"
		case "eval":
			for line := range strings.SplitSeq(d.Input, "\n") {
				b.WriteString(evalText(t, e, line))
			}
		}
		return b.String()
	})
}

func evalText(t *testing.T, e *Event, text string) string {
	x, compileErr := (&Source{Text: text, Pos: Pos{"x", 1, 1}}).compile()
	if compileErr != nil {
		return fmt.Sprintf("%s => %v\n", text, compileErr)
	}
	var v Value
	if err := x.Eval(e, &v); err != nil {
		return fmt.Sprintf("%s => error: %v\n", text, err)
	}
	path := ""
	switch {
	case x.ref != nil:
		path = " (name)"
	case x.fixed != nil:
		path = " (constant)"
	case x.term != nil:
		if fast, ok := x.term(e); ok {
			path = " (quick)"
			out, err := x.run(e)
			if err != nil || !reflect.DeepEqual(boxed(fast), out) {
				t.Errorf("%s: the fast path says %s, the machine %v, %v", text, fast.AppendJSON(nil), out, err)
			}
		}
	case x.cond != nil:
		if fast, ok := x.cond(e); ok {
			path = " (quick)"
			if out, err := x.run(e); err != nil || out != fast {
				t.Errorf("%s: the fast path says %t, the machine %v, %v", text, fast, out, err)
			}
		}
	}
	return fmt.Sprintf("%s => %s %s%s\n", text, v.Kind(), v.AppendJSON(nil), path)
}

func TestConditionOnWrongTypes(t *testing.T) {
	e := decode(t, `{"a":null,"s":"x"}`)
	for text, want := range map[string]string{
		"a": "false <nil>", "nothing": "false <nil>", "s": "false a condition must be true or false, not a string",
		"s > 1": "false invalid operation: string > int", `a startsWith "x"`: "false <nil>",
	} {
		x, err := (&Source{Text: text}).compile()
		if err != nil {
			t.Fatal(err)
		}
		got, evalErr := x.Condition(e)
		if s := fmt.Sprint(got, " ", evalErr); s != want {
			t.Errorf("%s: %s, want %s", text, s, want)
		}
	}
}

// TestExpressionAfterError: an expression that failed works on the next event.
func TestExpressionAfterError(t *testing.T) {
	x, err := (&Source{Text: "upper(a) + b"}).compile()
	if err != nil {
		t.Fatal(err)
	}
	var v Value
	if err := x.Eval(decode(t, `{"a":1}`), &v); err == nil {
		t.Fatal("no error")
	}
	if err := x.Eval(decode(t, `{"a":"x","b":"y"}`), &v); err != nil || string(v.Bytes()) != "Xy" {
		t.Fatalf("got %s, %v", v.AppendJSON(nil), err)
	}
}
