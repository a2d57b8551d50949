package pipelines

import "fmt"

// Stage is one step of `process`.
type Stage interface {
	// Name is the stage's key in YAML.
	Name() string
	// Position is where it stands.
	Position() Pos

	// compile makes the step that works on events.
	compile(labels []Label) (step, error)
	// follow says what an event's fields are behind the stage.
	follow(k *knownFields)
	// text is the stage as one line that is the same for the same meaning.
	text() string
}

// step is a compiled stage.
type step func(e *Event) (Outcome, error)

// Outcome is what a chain decided on an event.
type Outcome uint8

// The outcomes.
const (
	Keep Outcome = iota // go on with the event
	Drop                // a stage dropped it, on purpose
	Fail                // a stage could not work on it: Errors.Parse decides
)

// String is the outcome's name.
func (o Outcome) String() string { return [...]string{"keep", "drop", "fail"}[o] }

// Result is what a chain decided, and why.
type Result struct {
	Outcome Outcome
	Stage   string // Drop and Fail: the stage, "process[1].drop"
	Reason  string // Drop and Fail: for a counter's label: the stage's name, "parse", "drop" or "set"
	Err     error  // Fail: what was wrong
}

// Chain is a compiled list of stages. Not safe for concurrent use: one per goroutine.
type Chain struct {
	steps  []step
	names  []string // process[1].drop
	stages []string // drop
}

// NewProcess compiles the agent's stages.
func (p *Pipeline) NewProcess() (*Chain, error) {
	c := new(Chain)
	var labels []Label
	if p.Collect != nil {
		labels = p.Collect.Labels
		if s := p.Collect.stage(); s != nil {
			if err := c.add("collect."+p.Collect.Input(), s, labels); err != nil {
				return nil, err
			}
		}
	}
	return c, c.addAll("process", p.Process, labels)
}

// NewProcess compiles the worker's stages.
func (s *SinkSpec) NewProcess() (*Chain, error) {
	c := new(Chain)
	return c, c.addAll("sink.process", s.Process, nil)
}

func (c *Chain) addAll(what string, stages []Stage, labels []Label) error {
	for i, stage := range stages {
		if err := c.add(fmt.Sprintf("%s[%d].%s", what, i, stage.Name()), stage, labels); err != nil {
			return err
		}
	}
	return nil
}

// add compiles a stage and puts it at the end.
func (c *Chain) add(name string, stage Stage, labels []Label) error {
	st, err := stage.compile(labels)
	if err != nil {
		return fmt.Errorf("compile %s: %w", name, err)
	}
	c.steps = append(c.steps, st)
	c.names = append(c.names, name)
	c.stages = append(c.stages, stage.Name())
	return nil
}

// Empty says that the chain has no stage.
func (c *Chain) Empty() bool { return len(c.steps) == 0 }

// Apply runs the stages on an event, in place. After Fail in a chain that
// parses, the event is the raw line again: no fields, Parsed is false.
func (c *Chain) Apply(e *Event) Result {
	parsed := e.parsed
	for i, st := range c.steps {
		outcome, err := st(e)
		if outcome == Keep {
			continue
		}
		if outcome == Fail && !parsed {
			e.clear()
		}
		return Result{Outcome: outcome, Stage: c.names[i], Reason: c.stages[i], Err: err}
	}
	return Result{}
}

// Parser names a built-in parser.
type Parser string

// The parsers.
const (
	ParserNginx Parser = "nginx" // combined log format, nginx's and Apache's
	ParserJSON  Parser = "json"  // one object a line
	// ParserSyslog reads RFC 5424 and RFC 3164, with and without priority.
	ParserSyslog Parser = "syslog"
	// ParserJournald reads what journalctl -o json prints.
	ParserJournald Parser = "journald"
)

// parsedField is a field that every event of a parser has.
type parsedField struct {
	name string
	kind Kind
}

// parserFields are those of the parsers that have some.
var parserFields = map[Parser][]parsedField{
	ParserNginx: nginxFields[:], ParserSyslog: syslogFields[:], ParserJournald: journaldFields[:],
}

// ParseStage turns a raw line into fields, and adds the pipeline's labels.
type ParseStage struct {
	Parser Parser
	Zone   string // syslog: of times without one; "": local in the agent, UTC in a sink
	// Optional: a line that does not parse goes on as a raw one, and is no failure.
	Optional bool
	Pos      Pos
}

// Name is "parse".
func (*ParseStage) Name() string { return "parse" }

// Position is where the stage stands.
func (s *ParseStage) Position() Pos { return s.Pos }

func (s *ParseStage) text() string {
	if s.Optional {
		return "parse " + string(s.Parser) + " where it can be"
	}
	if s.Zone != "" {
		return "parse " + string(s.Parser) + " zone " + s.Zone
	}
	return "parse " + string(s.Parser)
}

// parser makes the parser's function.
func (s *ParseStage) parser() (func(*Event) error, error) {
	switch s.Parser {
	case ParserJSON:
		return func(e *Event) error { return e.DecodeJSON(e.Raw) }, nil
	case ParserSyslog:
		return newSyslogParser(s.Zone)
	case ParserJournald:
		return parseJournald, nil
	}
	return parseNginx, nil
}

func (s *ParseStage) compile(labels []Label) (step, error) {
	parse, err := s.parser()
	if err != nil {
		return nil, err
	}
	values := make([]field, len(labels))
	for i, l := range labels {
		values[i] = field{name: l.Name, value: StringOf(l.Value)}
	}
	return func(e *Event) (Outcome, error) {
		switch err := parse(e); {
		case err != nil && s.Optional:
			e.clear()
			return Keep, nil
		case err != nil:
			return Fail, err
		}
		for _, f := range values {
			if e.find(f.name, len(e.fields)) < 0 {
				e.push(f.name, f.value)
			}
		}
		return Keep, nil
	}, nil
}

func (s *ParseStage) follow(k *knownFields) {
	*k = knownFields{parsed: true, complete: s.Parser == ParserNginx || s.Parser == ParserSyslog}
	for _, f := range parserFields[s.Parser] {
		k.set(f.name, f.kind)
	}
}

// DropStage drops the events for which its condition holds.
type DropStage struct {
	Cond *Source
	Pos  Pos
}

// Name is "drop".
func (*DropStage) Name() string { return "drop" }

// Position is where the stage stands.
func (s *DropStage) Position() Pos { return s.Pos }

func (s *DropStage) text() string { return "drop " + s.Cond.Text }

func (s *DropStage) compile([]Label) (step, error) {
	x, err := s.Cond.expression()
	if err != nil {
		return nil, err
	}
	return func(e *Event) (Outcome, error) {
		drop, err := x.Condition(e)
		switch {
		case err != nil:
			return Fail, err
		case drop:
			return Drop, nil
		}
		return Keep, nil
	}, nil
}

func (s *DropStage) follow(*knownFields) {}

// SetStage sets fields to the values of expressions, one after the other: an
// expression sees the fields set before it.
type SetStage struct {
	Fields []Column
	Pos    Pos
}

// Name is "set".
func (*SetStage) Name() string { return "set" }

// Position is where the stage stands.
func (s *SetStage) Position() Pos { return s.Pos }

func (s *SetStage) text() string {
	out := "set"
	for _, f := range s.Fields {
		out += fmt.Sprintf(" %q=%q", f.Name, f.Expr.Text)
	}
	return out
}

func (s *SetStage) compile([]Label) (step, error) {
	values := make([]*Expression, len(s.Fields))
	for i, f := range s.Fields {
		x, err := f.Expr.expression()
		if err != nil {
			return nil, err
		}
		values[i] = x
	}
	return func(e *Event) (Outcome, error) {
		var v Value
		for i, x := range values {
			if err := x.Eval(e, &v); err != nil {
				return Fail, fmt.Errorf("%s: %w", s.Fields[i].Name, err)
			}
			e.Set(s.Fields[i].Name, v)
		}
		return Keep, nil
	}, nil
}

func (s *SetStage) follow(k *knownFields) {
	for _, f := range s.Fields {
		k.set(f.Name, k.kindOf(f.Expr))
	}
}
