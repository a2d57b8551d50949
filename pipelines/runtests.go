package pipelines

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
)

// TestResult is the outcome of one test of a file.
type TestResult struct {
	Test *Test
	Err  error // nil: passed; else an *Error that says what differs
}

// RunTests runs the tests of a pipeline through its stages: those before the
// topic, or, in a pipeline without collect, those of its first sink. No record
// exists then: _time and _key are null, _offset is 0.
func RunTests(p *Pipeline) []TestResult {
	results := make([]TestResult, len(p.Tests))
	for i := range p.Tests {
		t := &p.Tests[i]
		results[i].Test = t
		if err := runTest(p, t); err != nil {
			err.Message = fmt.Sprintf("tests[%d]: %s", i, err.Message)
			results[i].Err = err
		}
	}
	return results
}

func testChain(p *Pipeline) (*Chain, error) {
	if p.Collect == nil && len(p.Sinks) > 0 {
		return p.Sinks[0].NewProcess()
	}
	return p.NewProcess()
}

func runTest(p *Pipeline, t *Test) *Error {
	chain, err := testChain(p)
	if err != nil {
		return &Error{Pos: t.Pos, Message: err.Error()}
	}
	var e Event
	e.Reset([]byte(t.In))
	e.Meta.Topic = p.Topic.Name
	if p.Collect != nil {
		for _, l := range p.Collect.Labels {
			e.Meta.Headers = append(e.Meta.Headers, Header{Key: l.Name, Value: []byte(l.Value)})
		}
	}
	return t.judge(chain.Apply(&e), &e)
}

// judge compares what came out with what the test wants.
func (t *Test) judge(result Result, e *Event) *Error {
	wrong := func(format string, args ...any) *Error {
		return &Error{Pos: t.Pos, Message: fmt.Sprintf(format, args...)}
	}
	if t.Error != "" {
		switch {
		case result.Outcome != Fail:
			return wrong("want an error with %q, but no stage failed", t.Error)
		case !strings.Contains(result.Err.Error(), t.Error):
			return wrong("want an error with %q, have %q", t.Error, result.Err)
		}
		return nil
	}
	switch {
	case result.Outcome == Fail:
		return wrong("%s failed: %v", result.Stage, result.Err)
	case result.Outcome == Drop && len(t.Out) > 0:
		return wrong("want an event, but %s dropped the line", result.Stage)
	case result.Outcome == Keep && len(t.Out) == 0:
		return wrong("want the line dropped, but an event came out: %s", e.AppendJSON(nil))
	case result.Outcome == Drop:
		return nil
	}
	return t.Out[0].compare(e)
}

func (x *Expectation) compare(e *Event) *Error {
	for _, f := range x.Fields {
		ref := newReference(f.Name)
		if have := ref.value(e); !equal(have, f.Want) {
			want, _ := json.Marshal(f.Want)
			return &Error{Pos: f.Pos, Message: fmt.Sprintf("%s: want %s, have %s", f.Name, want, have.AppendJSON(nil))}
		}
	}
	return nil
}

// equal compares a field with what the YAML holds. Types count: 200 is not
// "200". A time is compared as text.
func equal(have Value, want any) bool {
	switch want := want.(type) {
	case nil:
		return have.kind == KindNull
	case string:
		return (have.kind == KindString || have.kind == KindTime) && string(have.AppendText(nil)) == want
	case bool:
		return have.kind == KindBool && have.Bool() == want
	case int64:
		n, err := have.ToInt64()
		return isNumeric(have.kind) && err == nil && n == want
	case uint64:
		n, err := have.ToUint64()
		return isNumeric(have.kind) && err == nil && n == want
	case float64:
		f, err := have.ToFloat64()
		return isNumeric(have.kind) && err == nil && f == want
	}
	return reflect.DeepEqual(have.Any(), want)
}

func isNumeric(k Kind) bool { return k == KindInt || k == KindUint || k == KindFloat }
