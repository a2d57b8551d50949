package pipelines

import (
	"bytes"
	"fmt"
	"time"
)

// The fields of a syslog message, in the order in which parse: syslog sets them. Each event has all of them; what the message does not
// have is null.
//
//	time      time    with the offset that was written or that the zone has; _time, when the agent took the message, where none was written
//	host      string
//	app       string  APP-NAME of RFC 5424, the tag's name of RFC 3164
//	procid    string
//	msgid     string
//	facility  string  kern, user, mail, ...
//	severity  string  emerg, alert, crit, err, warning, notice, info, debug
//	priority  int     as it was sent: facility*8 + severity
//	data      object  structured data: {"ID": {"NAME": "VALUE"}}
//	message   string
//
// RFC 5424 is read strictly behind its version. RFC 3164 describes what was in use and is read leniently: the priority may be missing, and
// the host, as in /dev/log; the time may have a year, a fraction, or be one of RFC 3339; a message behind a priority may lack all of them.
const (
	syslogTime     = "time"
	syslogHost     = "host"
	syslogApp      = "app"
	syslogProcID   = "procid"
	syslogMsgID    = "msgid"
	syslogFacility = "facility"
	syslogSeverity = "severity"
	syslogPriority = "priority"
	syslogData     = "data"
	syslogMessage  = "message"
)

var syslogFields = [...]parsedField{
	{syslogTime, KindTime}, {syslogHost, KindString}, {syslogApp, KindString}, {syslogProcID, KindString}, {syslogMsgID, KindString},
	{syslogFacility, KindString}, {syslogSeverity, KindString}, {syslogPriority, KindInt}, {syslogData, KindMap}, {syslogMessage, KindString},
}

var syslogFacilities = [...]string{"kern", "user", "mail", "daemon", "auth", "syslog", "lpr", "news", "uucp", "cron", "authpriv", "ftp",
	"ntp", "audit", "alert", "clock", "local0", "local1", "local2", "local3", "local4", "local5", "local6", "local7"}

var syslogSeverities = [...]string{"emerg", "alert", "crit", "err", "warning", "notice", "info", "debug"}

const (
	syslogPriorityMax = 191
	// syslogYearUnknown is the year of times without one where it is not known when the message came: in the tests of a file. It has a
	// 29 February.
	syslogYearUnknown = 2000
)

// syslogFound are the fields of one message.
type syslogFound struct {
	time, host, app, procid, msgid, priority, data, message Value
}

// newSyslogParser makes the parser. zone is that of times without one; "" means local.
func newSyslogParser(zone string) (func(*Event) error, error) {
	loc := time.Local
	if zone != "" && zone != zoneLocal {
		var err error
		if loc, err = time.LoadLocation(zone); err != nil {
			return nil, fmt.Errorf("time zone %s: %w", zone, err)
		}
	}
	return func(e *Event) error { return parseSyslog(e, loc) }, nil
}

// parseSyslog fills the event's fields from its raw message. On an error the event has no fields.
func parseSyslog(e *Event, loc *time.Location) error {
	e.clear()
	l := syslogLine{src: e.Raw, event: e, loc: loc}
	if err := l.parse(); err != nil {
		return err
	}
	m := &l.found
	if m.time.IsNull() && !e.Meta.Time.IsZero() {
		m.time = Time(e.Meta.Time.UTC())
	}
	facility, severity := Null(), Null()
	if !m.priority.IsNull() {
		p := m.priority.Int()
		facility, severity = textValue(syslogFacilities[p/8]), textValue(syslogSeverities[p%8])
	}
	e.push(syslogTime, m.time)
	e.push(syslogHost, m.host)
	e.push(syslogApp, m.app)
	e.push(syslogProcID, m.procid)
	e.push(syslogMsgID, m.msgid)
	e.push(syslogFacility, facility)
	e.push(syslogSeverity, severity)
	e.push(syslogPriority, m.priority)
	e.push(syslogData, m.data)
	e.push(syslogMessage, m.message)
	e.parsed = true
	return nil
}

// syslogLine reads one message in a single pass.
type syslogLine struct {
	src   []byte
	pos   int
	event *Event
	loc   *time.Location
	found syslogFound
}

func (l *syslogLine) fail(want string) error {
	return &SyntaxError{Format: "syslog", Offset: l.pos, Want: want}
}

func (l *syslogLine) parse() error {
	has, err := l.priority()
	if err != nil {
		return err
	}
	if has && l.version() {
		return l.rfc5424()
	}
	return l.rfc3164(has)
}

// priority reads <N>. It may be missing.
func (l *syslogLine) priority() (has bool, err error) {
	if len(l.src) == 0 || l.src[0] != '<' {
		return false, nil
	}
	end := bytes.IndexByte(l.src[:min(len(l.src), 5)], '>')
	if end < 2 {
		return false, l.fail("want a priority, <0> to <191>")
	}
	n, ok := parseDigits(l.src[1:end])
	if !ok || n > syslogPriorityMax {
		return false, l.fail("want a priority, <0> to <191>")
	}
	l.found.priority = Int(int64(n))
	l.pos = end + 1
	return true, nil
}

// version says whether this is RFC 5424, whose only version is 1, and goes behind it.
func (l *syslogLine) version() bool {
	if !bytes.HasPrefix(l.src[l.pos:], []byte("1 ")) {
		return false
	}
	l.pos += 2
	return true
}

// rfc5424 reads TIMESTAMP HOSTNAME APP-NAME PROCID MSGID STRUCTURED-DATA [MSG].
func (l *syslogLine) rfc5424() error {
	stamp, err := l.word("a time")
	if err != nil {
		return err
	}
	if !stamp.IsNull() {
		at, ok := parseTime(stamp.text)
		if !ok {
			l.pos -= len(stamp.text) + 1
			return l.fail("want a time of RFC 3339, or -")
		}
		l.found.time = at
	}
	for _, f := range []struct {
		to   *Value
		name string
	}{{&l.found.host, "a host"}, {&l.found.app, "an application"}, {&l.found.procid, "a process ID"}, {&l.found.msgid, "a message ID"}} {
		if *f.to, err = l.word(f.name); err != nil {
			return err
		}
	}
	if err := l.structured(); err != nil {
		return err
	}
	if l.pos < len(l.src) {
		if l.src[l.pos] != ' ' {
			return l.fail("want a blank behind the structured data")
		}
		l.pos++
	}
	text := bytes.TrimPrefix(l.src[l.pos:], []byte("\xEF\xBB\xBF"))
	l.found.message = String(text)
	return nil
}

// word reads up to the next blank and goes behind it. A - is null.
func (l *syslogLine) word(what string) (Value, error) {
	n := bytes.IndexByte(l.src[l.pos:], ' ')
	if n <= 0 {
		return Value{}, l.fail("want " + what + " or -, and a blank")
	}
	text := l.src[l.pos : l.pos+n : l.pos+n]
	l.pos += n + 1
	if len(text) == 1 && text[0] == '-' {
		return Null(), nil
	}
	return String(text), nil
}

// structured reads the structured data: - or [ID NAME="VALUE" ...] once or more.
func (l *syslogLine) structured() error {
	if l.pos < len(l.src) && l.src[l.pos] == '-' {
		l.pos++
		return nil
	}
	if l.pos >= len(l.src) || l.src[l.pos] != '[' {
		return l.fail("want structured data, [...] or -")
	}
	from := len(l.event.arena)
	out := append(l.event.arena, '{')
	for first := true; l.pos < len(l.src) && l.src[l.pos] == '['; first = false {
		if !first {
			out = append(out, ',')
		}
		var err error
		if out, err = l.element(out); err != nil {
			return err
		}
	}
	out = append(out, '}')
	l.event.arena = out
	l.found.data = Value{kind: KindMap, text: out[from:len(out):len(out)]}
	return nil
}

// element appends an element as a member of a JSON object.
func (l *syslogLine) element(out []byte) ([]byte, error) {
	l.pos++
	id, err := l.name(" ]")
	if err != nil {
		return out, err
	}
	out = append(appendString(out, alias(id)), ':', '{')
	for first := true; ; first = false {
		if l.pos >= len(l.src) {
			return out, l.fail("want ] at the end of an element")
		}
		if l.src[l.pos] == ']' {
			l.pos++
			return append(out, '}'), nil
		}
		if l.src[l.pos] != ' ' {
			return out, l.fail("want a blank or ]")
		}
		for l.pos < len(l.src) && l.src[l.pos] == ' ' {
			l.pos++
		}
		if l.pos < len(l.src) && l.src[l.pos] == ']' {
			continue
		}
		if !first {
			out = append(out, ',')
		}
		if out, err = l.param(out); err != nil {
			return out, err
		}
	}
}

// param appends NAME="VALUE".
func (l *syslogLine) param(out []byte) ([]byte, error) {
	name, err := l.name("=")
	if err != nil {
		return out, err
	}
	if !bytes.HasPrefix(l.src[l.pos:], []byte(`="`)) {
		return out, l.fail(`want ="VALUE"`)
	}
	l.pos += 2
	value, err := l.quoted()
	if err != nil {
		return out, err
	}
	out = append(appendString(out, alias(name)), ':')
	return appendString(out, alias(value)), nil
}

// name reads a name up to one of the bytes in end.
func (l *syslogLine) name(end string) ([]byte, error) {
	n := bytes.IndexAny(l.src[l.pos:], end)
	if n <= 0 || bytes.ContainsAny(l.src[l.pos:l.pos+n], "\"] ") {
		return nil, l.fail("want a name")
	}
	name := l.src[l.pos : l.pos+n]
	l.pos += n
	return name, nil
}

// quoted reads a value up to its quote and goes behind it. A \ before ", \ or ] is left out.
func (l *syslogLine) quoted() ([]byte, error) {
	start, escaped := l.pos, false
	for ; l.pos < len(l.src); l.pos++ {
		switch l.src[l.pos] {
		case '\\':
			escaped = true
			l.pos++
		case '"':
			value := l.src[start:l.pos]
			l.pos++
			if escaped {
				value = withoutEscapes(value)
			}
			return value, nil
		}
	}
	l.pos = len(l.src)
	return nil, l.fail(`want " at the end of a value`)
}

func withoutEscapes(src []byte) []byte {
	out := make([]byte, 0, len(src))
	for i := 0; i < len(src); i++ {
		if src[i] == '\\' && i+1 < len(src) && (src[i+1] == '"' || src[i+1] == '\\' || src[i+1] == ']') {
			i++
		}
		out = append(out, src[i])
	}
	return out
}

// rfc3164 reads [TIMESTAMP [HOST]] [TAG[PID]:] MESSAGE. Without a priority there must be a time.
func (l *syslogLine) rfc3164(priority bool) error {
	ok := l.stamp()
	if !ok && !priority {
		return l.fail("want a priority or a time")
	}
	if ok {
		l.hostWord()
	}
	l.tag()
	l.found.message = String(l.src[l.pos:])
	return nil
}

// stamp reads the time and the blank behind it.
func (l *syslogLine) stamp() bool {
	rest := l.src[l.pos:]
	at, n := syslogStamp(rest, l.event.Meta.Time, l.loc)
	if n == 0 || n < len(rest) && rest[n] != ' ' && rest[n] != ':' {
		return false
	}
	l.found.time = at
	l.pos += n
	if l.pos < len(l.src) && l.src[l.pos] == ':' { // as Cisco's devices write it
		l.pos++
	}
	l.blanks()
	return true
}

func (l *syslogLine) blanks() {
	for l.pos < len(l.src) && l.src[l.pos] == ' ' {
		l.pos++
	}
}

// hostWord reads the host, unless the word is a tag already: what is written to /dev/log has none.
func (l *syslogLine) hostWord() {
	rest := l.src[l.pos:]
	n := bytes.IndexByte(rest, ' ')
	if n <= 0 || rest[n-1] == ':' || bytes.IndexByte(rest[:n], '[') > 0 {
		return
	}
	l.found.host = String(rest[:n:n])
	l.pos += n
	l.blanks()
}

// tagBytesMax bounds a tag; RFC 3164 says 32, which the names of units exceed.
const tagBytesMax = 255

// tag reads NAME: or NAME[PID]: or NAME[PID]. What does not look like it is the message's.
func (l *syslogLine) tag() {
	rest := l.src[l.pos:]
	end := bytes.IndexAny(rest[:min(len(rest), tagBytesMax)], " :[")
	if end <= 0 || rest[end] == ' ' {
		return
	}
	next := end
	procid := Null()
	if rest[end] == '[' {
		close := bytes.IndexByte(rest[end:min(len(rest), end+tagBytesMax)], ']')
		if close < 0 {
			return
		}
		if close > 1 {
			procid = String(rest[end+1 : end+close : end+close])
		}
		next = end + close + 1
	}
	if next < len(rest) && rest[next] == ':' {
		next++
	} else if next == end { // a name alone
		return
	}
	l.found.app, l.found.procid = String(rest[:end:end]), procid
	l.pos += next
	if l.pos < len(l.src) && l.src[l.pos] == ' ' {
		l.pos++
	}
}

// SyslogSource is who wrote a syslog message, and its text.
type SyslogSource struct{ Host, App, ProcID string }

// SyslogReader tells the sources of messages. Not safe for concurrent use.
type SyslogReader struct{ event Event }

// Read reads a message. What is none is text without a source. The text aliases the message.
func (r *SyslogReader) Read(message []byte) (s SyslogSource, text []byte) {
	r.event.Reset(message)
	l := syslogLine{src: message, event: &r.event, loc: time.UTC}
	if err := l.parse(); err != nil {
		return s, message
	}
	m := &l.found
	return SyslogSource{Host: string(m.host.text), App: string(m.app.text), ProcID: string(m.procid.text)}, m.message.text
}
