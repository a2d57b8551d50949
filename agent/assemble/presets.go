package assemble

// Preset names patterns that are known to fit.
type Preset string

// The presets: stack traces as the runtimes of these languages print them,
// after a line of the log.
const (
	PresetJava   Preset = "java"
	PresetPython Preset = "python"
	PresetGo     Preset = "go"
)

// presetContinue are the lines that go on with the one before.
var presetContinue = map[Preset]string{
	// Frames are indented; causes, suppressed ones and what the frames have in
	// common are told with words; a plain class name with a message follows a
	// log line of its own.
	PresetJava: `^(\s+(at|\.\.\.|Suppressed:|\S)|Caused by:|Suppressed:|\s*-{3} |([a-zA-Z_$][\w$]*\.)+[A-Za-z_$][\w$]*(Exception|Error|Throwable)(:|$))`,
	// The head, indented frames and source lines, the empty line and sentence
	// between chained ones, and the exception at the end.
	PresetPython: `^(Traceback \(most recent call last\):|\s+\S|\s*$|During handling of the above exception|The above exception was the direct cause|\S*\w+(Error|Exception|Warning|Interrupt|Exit)(:|$))`,
	// From panic or fatal error on: signals, goroutines and their frames.
	PresetGo: `^(\s*$|\[signal |goroutine \d+ |\t|created by |panic: .*\[recovered\]|exit status |[\w./*()\[\]{}·-]+\(.*\)$|\.\.\.additional frames elided)`,
}

// PresetConfig returns the patterns of a preset; false when there is none of that
// name.
func PresetConfig(p Preset) (Config, bool) {
	expr, ok := presetContinue[p]
	if !ok {
		return Config{}, false
	}
	pattern, err := NewPattern(expr, false)
	return Config{Continue: pattern}, err == nil
}
