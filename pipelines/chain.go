package pipelines

// Stage is one step of `process`.
type Stage interface {
	// Name is the stage's key in YAML.
	Name() string
	// Position is where it stands.
	Position() Pos

	compile(env *compileEnv) (step, error)
}

type compileEnv struct{}
type step interface{}
type knownFields struct{}

// Outcome is what a chain decided on an event.
type Outcome uint8

// The outcomes.
const (
	Keep Outcome = iota // go on with the event
	Drop                // a stage dropped it, on purpose
	Fail                // a stage could not work on it: Errors.Parse decides
)

// Result is what a chain decided, and why.
type Result struct {
	Outcome Outcome
	Stage   string // Drop and Fail: the stage, "process[1].drop"
	Reason  string // Drop and Fail: for a counter's label: "drop", "parse", "expression"
	Err     error  // Fail: what was wrong
}

// Chain is a compiled list of stages. Not safe for concurrent use: one per goroutine.
type Chain struct {
}

// NewProcess compiles the agent's stages.
func (p *Pipeline) NewProcess() (*Chain, error) { panic("x") }

// NewProcess compiles the worker's stages.
func (s *SinkSpec) NewProcess() (*Chain, error) { panic("x") }

// Empty says that the chain has no stage.
func (c *Chain) Empty() bool { panic("x") }

// Apply runs the stages on an event, in place. After Fail the event is the raw
// line again: no fields, Parsed is false.
func (c *Chain) Apply(e *Event) Result { panic("x") }
