package pipelines

// Parse parses a file of one or more YAML documents, each a pipeline. name is
// used in messages. The error is a *Errors-list with every mistake found.
func Parse(name string, src []byte) ([]*Pipeline, error) { panic("x") }

// Load parses files, and the *.yaml and *.yml in directories. Relative paths
// are relative to the working directory. Names used twice are refused.
func Load(paths ...string) ([]*Pipeline, error) { panic("x") }

// TestResult is the outcome of one test of a file.
type TestResult struct {
	Test *Test
	Err  error // nil: passed; else what differs, with its place
}

// RunTests runs the tests of a pipeline through its stages: those before the
// topic, or, in a pipeline without collect, those of its first sink.
func RunTests(p *Pipeline) []TestResult { panic("x") }
