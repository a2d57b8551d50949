package pipelines

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml/ast"
)

// Limits and defaults of inputs.
const (
	rateHigh = 1 << 40

	restartMaxDefault = time.Minute
	intervalRunHigh   = 30 * 24 * time.Hour

	syslogLineBytesDefault      = 64 << 10
	syslogConnectionsDefault    = 1000
	syslogConnectionsHigh       = 100_000
	syslogReceiveBufferDefault  = 4 << 20
	syslogReceiveBufferHigh     = 1 << 30
	syslogSocketModeDefault     = 0o666
	journaldLineBytesMaxDefault = lineBytesDefault
)

// inputNames are the inputs, in the order of messages.
var inputNames = []string{"file", "stdin", "pipe", "exec", "syslog", "journald"}

func (r *yamlReader) collect(e entry) *Collect {
	c := new(Collect)
	mistakes := len(r.errs)
	found := r.object(e.value, "collect",
		known{"file", func(e entry) { c.File = r.fileInput(e) }},
		known{"stdin", func(e entry) { c.Stdin = r.stdinInput(e) }},
		known{"pipe", func(e entry) { c.Pipe = r.pipeInput(e) }},
		known{"exec", func(e entry) { c.Exec = r.execInput(e) }},
		known{"syslog", func(e entry) { c.Syslog = r.syslogInput(e) }},
		known{"journald", func(e entry) { c.Journald = r.journaldInput(e) }},
		known{"labels", func(e entry) { c.Labels = r.labels(e.value, "collect.labels") }},
	)
	r.oneInput(c, e, found, len(r.errs) > mistakes)
	for _, l := range c.Labels {
		if _, ok := reserved[l.Name]; ok || l.Name == HeaderRaw {
			r.errorAt(found["labels"], "collect.labels: %s has a meaning of its own", l.Name)
		}
	}
	return c
}

// oneInput sees to exactly one input. After a mistake one that is missing may be the mistake.
func (r *yamlReader) oneInput(c *Collect, e entry, found map[string]Pos, mistaken bool) {
	var have []string
	for _, name := range inputNames {
		if _, ok := found[name]; ok {
			have = append(have, name)
		}
	}
	switch {
	case len(have) > 1:
		r.errorAt(found[have[1]], "collect: a pipeline has one input, and this one has %s; make a pipeline of each, they may share a topic", strings.Join(have, " and "))
	case len(have) == 0 && !mistaken && found != nil:
		r.errorAt(e.pos, "collect: an input is missing: one of %s", strings.Join(inputNames, ", "))
	}
	if c.Input() == "" {
		c.File = &FileInput{InputOptions: defaultOptions()} // so that the rest can be checked
	}
}

func defaultOptions() InputOptions {
	return InputOptions{LineBytesMax: lineBytesDefault, Headers: true}
}

// inputOptions are the keys that every input has.
func (r *yamlReader) inputOptions(what string, o *InputOptions) []known {
	return []known{
		{"line_bytes_max", func(e entry) {
			o.LineBytesMax = int(r.size(e.value, what+".line_bytes_max", lineBytesLow, lineBytesHigh))
		}},
		{"headers", func(e entry) { o.Headers = r.boolean(e.value, what+".headers") }},
		{"rate_limit", func(e entry) { r.rateLimit(e, what+".rate_limit", &o.RateLimit) }},
	}
}

func (r *yamlReader) rateLimit(e entry, what string, l *RateLimit) {
	found := r.object(e.value, what,
		known{"lines", func(e entry) { l.Lines = r.integer(e.value, what+".lines", 1, rateHigh) }},
		known{"bytes", func(e entry) { l.Bytes = r.size(e.value, what+".bytes", 1, rateHigh) }},
	)
	if found != nil && len(found) == 0 {
		r.errorAt(e.pos, "%s: want lines or bytes, or both, in a second", what)
	}
}

func (r *yamlReader) stdinInput(e entry) *StdinInput {
	const what = "collect.stdin"
	s := &StdinInput{InputOptions: defaultOptions(), LineOptions: defaultLineOptions()}
	r.object(e.value, what, append(r.inputOptions(what, &s.InputOptions), r.lineOptions(what, &s.LineOptions)...)...)
	return s
}

func (r *yamlReader) pipeInput(e entry) *PipeInput {
	const what = "collect.pipe"
	p := &PipeInput{InputOptions: defaultOptions(), LineOptions: defaultLineOptions(), Create: true}
	found := r.object(e.value, what, append(append(r.inputOptions(what, &p.InputOptions), r.lineOptions(what, &p.LineOptions)...),
		known{"path", func(e entry) { p.Path = r.text(e.value, what+".path") }},
		known{"create", func(e entry) { p.Create = r.boolean(e.value, what+".create") }},
	)...)
	r.require(found, e.pos, what, "path")
	return p
}

func (r *yamlReader) execInput(e entry) *ExecInput {
	const what = "collect.exec"
	x := &ExecInput{InputOptions: defaultOptions(), LineOptions: defaultLineOptions(), Stderr: ExecStderrLines, RestartMax: restartMaxDefault}
	found := r.object(e.value, what, append(append(r.inputOptions(what, &x.InputOptions), r.lineOptions(what, &x.LineOptions)...),
		known{"command", func(e entry) { x.Command = r.texts(e.value, what+".command") }},
		known{"directory", func(e entry) { x.Directory = r.text(e.value, what+".directory") }},
		known{"environment", func(e entry) { x.Environment = r.labels(e.value, what+".environment") }},
		known{"stderr", func(e entry) {
			x.Stderr = ExecStderr(r.oneOf(e.value, what+".stderr", string(ExecStderrLines), string(ExecStderrLog), string(ExecStderrDrop)))
		}},
		known{"interval", func(e entry) { x.Interval = r.duration(e.value, what+".interval", intervalLow, intervalRunHigh) }},
		known{"timeout", func(e entry) { x.Timeout = r.duration(e.value, what+".timeout", intervalLow, intervalRunHigh) }},
		known{"restart_max", func(e entry) { x.RestartMax = r.duration(e.value, what+".restart_max", intervalLow, intervalHigh) }},
	)...)
	r.require(found, e.pos, what, "command")
	r.execModes(found)
	return x
}

// execModes refuses settings of the mode that is not asked for.
func (r *yamlReader) execModes(found map[string]Pos) {
	_, interval := found["interval"]
	if pos, ok := found["timeout"]; ok && !interval {
		r.errorAt(pos, "collect.exec.timeout: goes with interval; a command without one runs on")
	}
	if pos, ok := found["restart_max"]; ok && interval {
		r.errorAt(pos, "collect.exec.restart_max: goes without interval; with one the command is started at each")
	}
}

func (r *yamlReader) syslogInput(e entry) *SyslogInput {
	const what = "collect.syslog"
	s := &SyslogInput{InputOptions: defaultOptions(), Pos: e.pos, Format: InputEvent, Zone: zoneLocal,
		ConnectionsMax: syslogConnectionsDefault, ReceiveBuffer: syslogReceiveBufferDefault, SocketMode: syslogSocketModeDefault}
	s.LineBytesMax = syslogLineBytesDefault
	found := r.object(e.value, what, append(r.inputOptions(what, &s.InputOptions),
		known{"listen", func(e entry) { s.Listen = r.syslogListens(e.value, what+".listen") }},
		known{"format", func(e entry) { s.Format = r.inputFormat(e, what) }},
		known{"zone", func(e entry) { s.Zone = r.zone(e.value, what+".zone") }},
		known{"tls", func(e entry) { s.TLS = r.serverTLS(e, what+".tls") }},
		known{"connections_max", func(e entry) {
			s.ConnectionsMax = int(r.integer(e.value, what+".connections_max", 1, syslogConnectionsHigh))
		}},
		known{"idle_timeout", func(e entry) { s.IdleTimeout = r.duration(e.value, what+".idle_timeout", intervalLow, intervalHigh) }},
		known{"receive_buffer", func(e entry) {
			s.ReceiveBuffer = int(r.size(e.value, what+".receive_buffer", agentBatchBytesLow, syslogReceiveBufferHigh))
		}},
		known{"multiline", func(e entry) { s.Multiline = r.multiline(e, what+".multiline") }},
		known{"socket_mode", func(e entry) { s.SocketMode = r.fileMode(e.value, what+".socket_mode") }},
	)...)
	r.require(found, e.pos, what, "listen")
	secure := slices.ContainsFunc(s.Listen, func(l SyslogListen) bool { return l.Network == "tls" })
	if pos, ok := found["tls"]; ok && !secure && len(s.Listen) > 0 {
		r.errorAt(pos, "%s.tls: none of listen begins with tls://", what)
	}
	if secure && s.TLS == nil {
		r.errorAt(found["listen"], "%s.tls is missing: tls:// needs cert_file and key_file", what)
	}
	return s
}

func (r *yamlReader) inputFormat(e entry, what string) InputFormat {
	return InputFormat(r.oneOf(e.value, what+".format", string(InputEvent), string(InputRaw)))
}

// syslogNetworks are what a place to listen at may begin with.
var syslogNetworks = []string{"tcp", "tls", "udp", "unix", "unixgram"}

func (r *yamlReader) syslogListens(n ast.Node, what string) (out []SyslogListen) {
	items, ok := r.list(n, what)
	if ok && len(items) == 0 {
		r.errorOn(n, "%s: the list is empty", what)
	}
	for i, item := range items {
		what := fmt.Sprintf("%s[%d]", what, i)
		if l, ok := r.syslogListen(item, what); ok {
			out = append(out, l)
		}
	}
	return out
}

func (r *yamlReader) syslogListen(n ast.Node, what string) (l SyslogListen, ok bool) {
	text := r.text(n, what)
	if text == "" {
		return l, false
	}
	network, address, found := strings.Cut(text, "://")
	if !found || !slices.Contains(syslogNetworks, network) {
		r.errs = append(r.errs, &Error{Pos: r.pos(n), Suggestion: nearest(network, syslogNetworks),
			Message: fmt.Sprintf("%s: want tcp://HOST:PORT, tls://HOST:PORT, udp://HOST:PORT, unix://PATH or unixgram://PATH, not %q", what, text)})
		return l, false
	}
	if strings.HasPrefix(network, "unix") {
		if !filepath.IsAbs(address) {
			r.errorOn(n, "%s: want the absolute path of the socket, as in %s:///run/sluice/log, not %q", what, network, text)
			return l, false
		}
		return SyslogListen{network, address}, true
	}
	if host, port, ok := cutPort(address); !ok || host != "" && !isAddress(host+":1") || port > 1<<16-1 {
		r.errorOn(n, "%s: want %s://HOST:PORT, not %q", what, network, text)
		return l, false
	}
	return SyslogListen{network, address}, true
}

// cutPort splits host:port; an empty host stands for all, and port 0 for a free one.
func cutPort(s string) (host string, port uint64, ok bool) {
	i := strings.LastIndexByte(s, ':')
	if i < 0 {
		return "", 0, false
	}
	port, err := strconv.ParseUint(s[i+1:], 10, 32)
	return s[:i], port, err == nil
}

func (r *yamlReader) serverTLS(e entry, what string) *ServerTLS {
	t := new(ServerTLS)
	found := r.object(e.value, what,
		known{"cert_file", func(e entry) { t.CertFile = r.text(e.value, what+".cert_file") }},
		known{"key_file", func(e entry) { t.KeyFile = r.text(e.value, what+".key_file") }},
		known{"client_ca_file", func(e entry) { t.ClientCA = r.text(e.value, what+".client_ca_file") }},
	)
	r.require(found, e.pos, what, "cert_file", "key_file")
	return t
}

// fileMode reads permissions as three or four octal digits.
func (r *yamlReader) fileMode(n ast.Node, what string) uint32 {
	text := r.anyText(n, what)
	mode, err := strconv.ParseUint(strings.TrimPrefix(text, "0o"), 8, 32)
	if text != "" && (err != nil || mode > 0o777) {
		r.errorOn(n, "%s: want permissions such as 0660, not %q", what, text)
	}
	return uint32(mode)
}

func (r *yamlReader) journaldInput(e entry) *JournaldInput {
	const what = "collect.journald"
	j := &JournaldInput{InputOptions: defaultOptions(), Pos: e.pos, StartAt: StartAtBeginning, Format: InputEvent, Command: []string{"journalctl"}}
	j.LineBytesMax = journaldLineBytesMaxDefault
	found := r.object(e.value, what, append(r.inputOptions(what, &j.InputOptions),
		known{"units", func(e entry) { j.Units = r.texts(e.value, what+".units") }},
		known{"matches", func(e entry) { j.Matches = r.journalMatches(e.value, what+".matches") }},
		known{"boot", func(e entry) { j.Boot = r.oneOf(e.value, what+".boot", "current", "all") == "current" }},
		known{"start_at", func(e entry) {
			j.StartAt = StartAt(r.oneOf(e.value, what+".start_at", string(StartAtBeginning), string(StartAtEnd)))
		}},
		known{"format", func(e entry) { j.Format = r.inputFormat(e, what) }},
		known{"ignore_older", func(e entry) { j.IgnoreOlder = r.duration(e.value, what+".ignore_older", time.Second, ignoreOlderHigh) }},
		known{"multiline", func(e entry) { j.Multiline = r.multiline(e, what+".multiline") }},
		known{"directory", func(e entry) { j.Directory = r.text(e.value, what+".directory") }},
		known{"command", func(e entry) { j.Command = r.texts(e.value, what+".command") }},
	)...)
	if pos, ok := found["ignore_older"]; ok && j.StartAt == StartAtEnd {
		r.errorAt(pos, "%s.ignore_older: with start_at: end all that is there is passed over", what)
	}
	return j
}

// journalMatches reads FIELD=VALUE, and + for "or", as journalctl does.
func (r *yamlReader) journalMatches(n ast.Node, what string) []string {
	out := r.texts(n, what)
	for i, m := range out {
		field, _, ok := strings.Cut(m, "=")
		upper := strings.IndexFunc(field, func(c rune) bool { return (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '_' }) < 0
		if m != "" && m != "+" && (!ok || field == "" || !upper) {
			r.errorOn(n, "%s[%d]: want FIELD=VALUE, such as _SYSTEMD_UNIT=nginx.service, or + for or, not %q", what, i, m)
		}
	}
	return out
}
