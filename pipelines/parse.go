package pipelines

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/goccy/go-yaml/ast"
)

// fileBytesMax bounds a pipeline file.
const fileBytesMax = 1 << 20

// Parse parses a file of one or more YAML documents, each a pipeline. name is
// used in messages. The error is an ErrorList with every mistake found, in the
// order of the file.
func Parse(name string, src []byte) ([]*Pipeline, error) {
	r := &yamlReader{file: name, lines: strings.Split(string(src), "\n")}
	if len(src) > fileBytesMax {
		r.errorAt(Pos{name, 1, 1}, "the file has %d bytes; at most %s are read", len(src), formatSize(fileBytesMax))
		return nil, r.errs
	}
	if line, deep := tooDeep(r.lines); deep {
		r.errorAt(Pos{name, line, 1}, "brackets are nested deeper than %d levels", nestingMax)
		return nil, r.errs
	}
	var pipes []*Pipeline
	for _, doc := range r.parseYAML(src) {
		r.collectAnchors(doc)
		pipes = append(pipes, r.pipeline(doc))
	}
	if len(pipes) == 0 && len(r.errs) == 0 {
		r.errorAt(Pos{name, 1, 1}, "the file has no pipeline")
	}
	r.errs = append(r.errs, checkTogether(pipes)...)
	if len(r.errs) > 0 {
		slices.SortStableFunc(r.errs, func(a, b *Error) int {
			return cmp.Or(cmp.Compare(a.Pos.Line, b.Pos.Line), cmp.Compare(a.Pos.Col, b.Pos.Col))
		})
		return nil, r.errs
	}
	return pipes, nil
}

// nestingMax bounds the nesting of brackets in a file; the YAML library takes time that grows with the square of it.
const nestingMax = 200

// tooDeep finds the line on which brackets are nested too deeply. It looks at no quotes: no text has so many that stay open.
func tooDeep(lines []string) (line int, deep bool) {
	depth := 0
	for i, text := range lines {
		for _, c := range []byte(text) {
			switch c {
			case '[', '{':
				depth++
			case ']', '}':
				depth = max(depth-1, 0)
			}
			if depth > nestingMax {
				return i + 1, true
			}
		}
	}
	return 0, false
}

// Load parses files, and the *.yaml and *.yml in directories, in the order
// given (a directory's by name). Relative paths are relative to the working
// directory. Names used twice are refused. The error is an ErrorList of all
// files' mistakes, or says which file cannot be read.
func Load(paths ...string) ([]*Pipeline, error) {
	files, err := expand(paths)
	if err != nil {
		return nil, err
	}
	var pipes []*Pipeline
	var errs ErrorList
	for _, f := range files {
		src, err := os.ReadFile(f)
		if err != nil {
			return nil, fmt.Errorf("read pipeline file: %w", err)
		}
		parsed, err := Parse(f, src)
		if list, ok := err.(ErrorList); ok {
			errs = append(errs, list...)
		}
		pipes = append(pipes, parsed...)
	}
	if len(errs) == 0 {
		errs = checkTogether(pipes)
	}
	if len(errs) > 0 {
		return nil, errs
	}
	return pipes, nil
}

// expand replaces directories by the pipeline files in them.
func expand(paths []string) ([]string, error) {
	var files []string
	for _, p := range paths {
		info, err := os.Stat(p)
		if err != nil {
			return nil, fmt.Errorf("read pipeline file: %w", err)
		}
		if info.Mode().IsRegular() {
			files = append(files, p)
			continue
		}
		if !info.IsDir() {
			return nil, fmt.Errorf("read pipeline file: %s is neither a file nor a directory", p) // a pipe may never end
		}
		entries, err := os.ReadDir(p)
		if err != nil {
			return nil, fmt.Errorf("read pipeline directory: %w", err)
		}
		before := len(files)
		for _, e := range entries {
			if ext := filepath.Ext(e.Name()); !e.IsDir() && (ext == ".yaml" || ext == ".yml") {
				files = append(files, filepath.Join(p, e.Name()))
			}
		}
		if len(files) == before {
			return nil, fmt.Errorf("read pipeline directory %s: no *.yaml or *.yml in it", p)
		}
	}
	return files, nil
}

// nameShape is what Kafka allows in a topic's name; pipelines and sinks name
// consumer groups and files, and are held to the same.
var nameShape = regexp.MustCompile(`^[A-Za-z0-9._-]+$`)

// topicsMaxHigh bounds topic.topics_max.
const topicsMaxHigh = 10_000

// nameBytesMax is Kafka's limit on a topic's name.
const nameBytesMax = 249

func (r *yamlReader) name(n ast.Node, what string) string {
	s := r.text(n, what)
	if s == "" {
		return ""
	}
	if !nameShape.MatchString(s) || s == "." || s == ".." || len(s) > nameBytesMax {
		r.errorOn(n, "%s: %q is not a name: letters, digits, dots, _ and -, at most %d", what, s, nameBytesMax)
		return ""
	}
	return s
}

// topicName reads the name of a topic that anyone may write into.
func (r *yamlReader) topicName(n ast.Node, what string) string {
	s := r.name(n, what)
	if BrokersOwn(s) {
		r.errorOn(n, "%s: %s is the brokers' own", what, s)
	}
	return s
}

// BrokersOwn says that a topic is one that brokers keep their own state in.
func BrokersOwn(topic string) bool {
	return topic == "__consumer_offsets" || topic == "__transaction_state"
}

// pipeline reads one document.
func (r *yamlReader) pipeline(doc ast.Node) *Pipeline {
	p := &Pipeline{Pos: r.pos(doc)}
	var at places
	at.keys = r.object(doc, "",
		known{"pipeline", func(e entry) { p.Name, p.Pos = r.name(e.value, "pipeline"), e.pos }},
		known{"brokers", func(e entry) { p.Brokers = r.brokers(e) }},
		known{"collect", func(e entry) { p.Collect = r.collect(e) }},
		known{"process", func(e entry) { p.Process = r.stages(e.value, "process") }},
		known{"topic", func(e entry) { at.topic = r.topic(e, &p.Topic) }},
		known{"sink", func(e entry) { p.Sinks = append(p.Sinks, r.sink(e, "sink", "")) }},
		known{"sinks", func(e entry) { p.Sinks = append(p.Sinks, r.sinks(e)...) }},
		known{"errors", func(e entry) { at.errors = r.errorsPart(e, &p.Errors) }},
		known{"tests", func(e entry) { p.Tests = r.tests(e.value) }},
	)
	if at.keys == nil {
		return p
	}
	r.finish(p, at)
	return p
}

func (r *yamlReader) brokers(e entry) *Brokers {
	b := new(Brokers)
	found := r.object(e.value, "brokers",
		known{"addr", func(e entry) { b.Addr = r.addresses(e.value, "brokers.addr") }},
		known{"tls", func(e entry) { b.TLS = r.tls(e.value, "brokers.tls") }},
		known{"sasl", func(e entry) { b.SASL = r.sasl(e) }},
	)
	r.require(found, e.pos, "brokers", "addr")
	return b
}

// require notes which keys are missing from an object that could be read.
func (r *yamlReader) require(found map[string]Pos, pos Pos, what string, keys ...string) {
	if found == nil {
		return
	}
	for _, k := range keys {
		if _, ok := found[k]; !ok {
			r.errorAt(pos, "%s is missing", join(what, k))
		}
	}
}

func (r *yamlReader) addresses(n ast.Node, what string) []string {
	items, ok := r.list(n, what)
	if ok && len(items) == 0 {
		r.errorOn(n, "%s: the list is empty", what)
	}
	var out []string
	for i, item := range items {
		what := fmt.Sprintf("%s[%d]", what, i)
		addr := r.text(item, what)
		if addr != "" && !isAddress(addr) {
			r.errorOn(item, "%s: want host:port, not %q", what, addr)
		}
		out = append(out, addr)
	}
	return out
}

func isAddress(s string) bool {
	i := strings.LastIndexByte(s, ':')
	if i <= 0 || strings.Contains(s, "/") {
		return false
	}
	host := s[:i]
	if strings.Contains(host, ":") && !(strings.HasPrefix(host, "[") && strings.HasSuffix(host, "]")) {
		return false
	}
	port, ok := parseDigits([]byte(s[i+1:]))
	return ok && port > 0 && port < 1<<16
}

func (r *yamlReader) tls(n ast.Node, what string) *TLS {
	t := new(TLS)
	found := r.object(n, what,
		known{"ca_file", func(e entry) { t.CAFile = r.text(e.value, what+".ca_file") }},
		known{"cert_file", func(e entry) { t.CertFile = r.text(e.value, what+".cert_file") }},
		known{"key_file", func(e entry) { t.KeyFile = r.text(e.value, what+".key_file") }},
		known{"server_name", func(e entry) { t.ServerName = r.text(e.value, what+".server_name") }},
		known{"insecure_skip_verify", func(e entry) { t.InsecureSkipVerify = r.boolean(e.value, what+".insecure_skip_verify") }},
	)
	if _, cert := found["cert_file"]; cert {
		r.require(found, found["cert_file"], what, "key_file")
	}
	if _, key := found["key_file"]; key {
		r.require(found, found["key_file"], what, "cert_file")
	}
	return t
}

func (r *yamlReader) sasl(e entry) *SASL {
	s := new(SASL)
	found := r.object(e.value, "brokers.sasl",
		known{"mechanism", func(e entry) {
			s.Mechanism = SASLMechanism(r.oneOf(e.value, "brokers.sasl.mechanism",
				string(SASLPlain), string(SASLScramSHA256), string(SASLScramSHA512)))
		}},
		known{"username", func(e entry) { s.Username = r.text(e.value, "brokers.sasl.username") }},
		known{"password", func(e entry) { s.Password = r.secret(e.value, "brokers.sasl.password") }},
	)
	if len(found) == 0 { // sasl: {} is no authentication
		return nil
	}
	r.require(found, e.pos, "brokers.sasl", "mechanism", "username", "password")
	return s
}

func (r *yamlReader) secret(n ast.Node, what string) Secret {
	s := NewSecret(r.text(n, what))
	lookup := func(string) (string, bool) { return "", true }
	if _, err := s.expand(lookup); err != nil {
		r.errorOn(n, "%s: %v", what, err)
	}
	return s
}

// Limits of collect.file.
const (
	lineBytesDefault = 1 << 20
	lineBytesLow     = 64
	lineBytesHigh    = 16 << 20
	intervalLow      = 10 * time.Millisecond
	intervalHigh     = 24 * time.Hour
	ignoreOlderHigh  = 10 * 365 * 24 * time.Hour
	openFilesHigh    = 1 << 20
)

// Limits of what removed files keep on disk.
const (
	deletedBytesDefault = 10 << 30
	deletedBytesLow     = 1 << 10
	deletedBytesHigh    = 1 << 50
)

func (r *yamlReader) fileInput(e entry) *FileInput {
	const what = "collect.file"
	f := &FileInput{InputOptions: defaultOptions(), LineOptions: defaultLineOptions(), StartAt: StartAtBeginning, Symlinks: SymlinksFollow, DeletedBytesMax: deletedBytesDefault}
	interval := func(key string, d *time.Duration) known {
		return known{key, func(e entry) { *d = r.duration(e.value, what+"."+key, intervalLow, intervalHigh) }}
	}
	found := r.object(e.value, what, append(append(r.inputOptions(what, &f.InputOptions), r.lineOptions(what, &f.LineOptions)...),
		known{"include", func(e entry) { f.Include = r.globs(e.value, what+".include") }},
		known{"exclude", func(e entry) { f.Exclude = r.globs(e.value, what+".exclude") }},
		known{"start_at", func(e entry) {
			f.StartAt = StartAt(r.oneOf(e.value, what+".start_at", string(StartAtBeginning), string(StartAtEnd)))
		}},
		known{"container", func(e entry) { f.Container = r.container(e, what+".container") }},
		known{"identity", func(e entry) { f.Identity = r.boolean(e.value, what+".identity") }},
		known{"ignore_older", func(e entry) { f.IgnoreOlder = r.duration(e.value, what+".ignore_older", time.Second, ignoreOlderHigh) }},
		known{"symlinks", func(e entry) {
			f.Symlinks = Symlinks(r.oneOf(e.value, what+".symlinks", string(SymlinksFollow), string(SymlinksWithin), string(SymlinksNone)))
		}},
		known{"roots", func(e entry) { f.Roots = r.texts(e.value, what+".roots") }},
		known{"open_files_max", func(e entry) { f.OpenFilesMax = int(r.integer(e.value, what+".open_files_max", 1, openFilesHigh)) }},
		known{"deleted_bytes_max", func(e entry) {
			f.DeletedBytesMax = r.size(e.value, what+".deleted_bytes_max", deletedBytesLow, deletedBytesHigh)
		}},
		interval("scan_interval", &f.ScanInterval),
		interval("rotate_grace", &f.RotateGrace),
		interval("partial_after", &f.PartialAfter),
	)...)
	r.require(found, e.pos, what, "include")
	if pos, ok := found["roots"]; ok && f.Symlinks != SymlinksWithin {
		r.errorAt(pos, "%s.roots: goes with symlinks: within_roots", what)
	}
	return f
}

func (r *yamlReader) globs(n ast.Node, what string) []string {
	patterns := r.texts(n, what)
	for i, p := range patterns {
		if _, err := filepath.Match(p, ""); err != nil {
			r.errorOn(n, "%s[%d]: %q is not a pattern: a [ or a \\ without its end", what, i, p)
		}
		if strings.HasPrefix(p, "~/") || strings.Contains(p, "${") {
			r.errorOn(n, "%s[%d]: %q: no shell reads patterns: write the directory out", what, i, p)
		}
	}
	return patterns
}

// labels reads a mapping of names to single values, kept as text.
func (r *yamlReader) labels(n ast.Node, what string) []Label {
	entries, _ := r.mapping(n, what)
	var out []Label
	for _, e := range entries {
		if e.key == "" {
			r.errorAt(e.pos, "%s: a name must not be empty", what)
		}
		if _, null := e.value.(*ast.NullNode); null {
			r.errorAt(e.pos, "%s.%s: the value is missing", what, e.key)
			continue
		}
		out = append(out, Label{Name: e.key, Value: r.anyText(e.value, what+"."+e.key)})
	}
	return out
}

func (r *yamlReader) topic(e entry, t *Topic) map[string]Pos {
	return r.object(e.value, "topic",
		known{"name", func(e entry) { t.Name = r.topicName(e.value, "topic.name") }},
		known{"partitions", func(e entry) { t.Partitions = int32(r.integer(e.value, "topic.partitions", 1, 10_000)) }},
		known{"replicas", func(e entry) { t.Replicas = int16(r.integer(e.value, "topic.replicas", 1, 100)) }},
		known{"key", func(e entry) { t.Key = r.source(e.value, "topic.key") }},
		known{"hash", func(e entry) { t.Hash = r.source(e.value, "topic.hash") }},
		known{"partition", func(e entry) { t.Partition = r.source(e.value, "topic.partition") }},
		known{"name_from", func(e entry) { t.NameFrom = r.source(e.value, "topic.name_from") }},
		known{"topics_max", func(e entry) { t.TopicsMax = int(r.integer(e.value, "topic.topics_max", 1, topicsMaxHigh)) }},
		known{"spread", func(e entry) {
			t.Spread = Spread(r.oneOf(e.value, "topic.spread", string(SpreadFile), string(SpreadRoundRobin)))
		}},
		known{"batch", func(e entry) { r.agentBatch(e, &t.Batch) }},
		known{"max_in_flight", func(e entry) { t.MaxInFlight = int(r.integer(e.value, "topic.max_in_flight", 1, 5)) }},
		known{"on_unknown", func(e entry) {
			t.OnUnknown = OnUnknown(r.oneOf(e.value, "topic.on_unknown", string(OnUnknownResend), string(OnUnknownHold)))
		}},
		known{"compression", func(e entry) {
			t.Compression = Compression(r.oneOf(e.value, "topic.compression", string(CompressionAuto), string(CompressionNone),
				string(CompressionGzip), string(CompressionSnappy), string(CompressionLZ4), string(CompressionZstd)))
		}},
		known{"config", func(e entry) { t.Config = r.labels(e.value, "topic.config") }},
	)
}

// Limits of topic.batch.
const (
	agentBatchBytesLow  = 1 << 10
	agentBatchBytesHigh = 16 << 20
	agentBatchLinesMax  = 1_000_000
	agentBatchAgeLow    = time.Millisecond
	agentBatchAgeHigh   = time.Minute
)

func (r *yamlReader) agentBatch(e entry, b *AgentBatch) {
	const what = "topic.batch"
	r.object(e.value, what,
		known{"bytes", func(e entry) {
			b.Bytes = int(r.size(e.value, what+".bytes", agentBatchBytesLow, agentBatchBytesHigh))
		}},
		known{"lines", func(e entry) { b.Lines = int(r.integer(e.value, what+".lines", 1, agentBatchLinesMax)) }},
		known{"age", func(e entry) { b.Age = r.duration(e.value, what+".age", agentBatchAgeLow, agentBatchAgeHigh) }},
	)
}

func (r *yamlReader) errorsPart(e entry, p *Errors) map[string]Pos {
	return r.object(e.value, "errors",
		known{"parse", func(e entry) {
			p.Parse = ErrorPolicy(r.oneOf(e.value, "errors.parse", string(ErrorsDeadLetter), string(ErrorsKeep), string(ErrorsDrop)))
		}},
		known{"dead_letter", func(e entry) { p.DeadLetter = r.topicName(e.value, "errors.dead_letter") }},
		known{"dead_letter_share", func(e entry) { p.DeadLetterShare = r.percent(e.value, "errors.dead_letter_share") }},
	)
}
