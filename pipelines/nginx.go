package pipelines

import "bytes"

// The fields of a line in the combined log format of nginx and Apache, in the
// order in which parse: nginx sets them:
//
//	203.0.113.7 - alice [30/Nov/2026:10:00:00 +0000] "GET /a?b=1 HTTP/1.1" 200 512 "https://e.org/" "curl/8.9"
//
//	remote_addr  string  203.0.113.7 (an address of either kind, or a name)
//	remote_user  string  alice; null when -
//	time         time    with the offset that was written
//	method       string  GET  \
//	path         string  /a    | null when the request is not METHOD TARGET [PROTOCOL]
//	query        string  b=1   | (query: also without ?); then a field request,
//	protocol     string  HTTP/1.1 / at the end, holds what was sent instead
//	status       int     200
//	bytes        int     512; 0 when - (Apache writes that for none)
//	referer      string  null when - or not written (common log format)
//	user_agent   string  likewise
//	request      string  only for a malformed request
//	extra        string  only when more follows, such as the X-Forwarded-For
//	                     of the nginx packages' "main" format
//
// Inside quotes \" and \\ and \xNN (nginx escapes so; every byte above 126 too)
// and Apache's \n, \t, \r, \b, \v and \f stand for the bytes they escape.
const (
	nginxRemoteAddr = "remote_addr"
	nginxRemoteUser = "remote_user"
	nginxTime       = "time"
	nginxMethod     = "method"
	nginxPath       = "path"
	nginxQuery      = "query"
	nginxProtocol   = "protocol"
	nginxStatus     = "status"
	nginxBytes      = "bytes"
	nginxReferer    = "referer"
	nginxUserAgent  = "user_agent"
	nginxRequest    = "request"
	nginxExtra      = "extra"
)

// nginxFields are the fields that every parsed line has, with their kinds.
var nginxFields = [...]parsedField{
	{nginxRemoteAddr, KindString}, {nginxRemoteUser, KindString}, {nginxTime, KindTime},
	{nginxMethod, KindString}, {nginxPath, KindString}, {nginxQuery, KindString},
	{nginxProtocol, KindString}, {nginxStatus, KindInt}, {nginxBytes, KindInt},
	{nginxReferer, KindString}, {nginxUserAgent, KindString},
}

// nginxOptional are the fields that only some lines have.
var nginxOptional = [...]string{nginxRequest, nginxExtra}

// nginxLine reads one line in a single pass.
type nginxLine struct {
	src   []byte
	pos   int
	event *Event
}

// parseNginx fills the event's fields from its raw line. On an error the event
// has no fields.
func parseNginx(e *Event) error {
	e.clear()
	l := nginxLine{src: e.Raw, event: e}
	if err := l.parse(); err != nil {
		e.clear()
		return err
	}
	e.parsed = true
	return nil
}

func (l *nginxLine) fail(want string) error {
	return &SyntaxError{Format: "nginx", Offset: l.pos, Want: want}
}

func (l *nginxLine) parse() error {
	if err := l.client(); err != nil {
		return err
	}
	request, err := l.quoted("want the request in quotes")
	if err != nil {
		return err
	}
	malformed := l.request(request)
	if err := l.numbers(); err != nil {
		return err
	}
	if err := l.quotedFields(); err != nil {
		return err
	}
	if malformed {
		l.event.push(nginxRequest, String(l.unescape(request)))
	}
	if rest := bytes.TrimSpace(l.src[l.pos:]); len(rest) > 0 {
		l.event.push(nginxExtra, String(rest))
	}
	return nil
}

// client reads the address, the identity (thrown away), the user and the time.
func (l *nginxLine) client() error {
	addr := bytes.IndexByte(l.src, ' ')
	if addr <= 0 {
		return l.fail("want the client's address and a blank")
	}
	ident := bytes.IndexByte(l.src[addr+1:], ' ')
	if ident < 0 {
		return l.fail("want address, identity and user")
	}
	user := addr + 1 + ident + 1
	l.pos = user
	// The user is whatever the client sent, blanks and brackets included: it
	// ends where a time follows.
	for at := user; ; {
		i := bytes.IndexByte(l.src[at:], '[')
		if i < 0 {
			return l.fail("want the time in brackets, [30/Nov/2026:10:00:00 +0000]")
		}
		at += i
		t, ok := nginxTimeAt(l.src[at:])
		if ok && at > user && l.src[at-1] == ' ' {
			l.event.push(nginxRemoteAddr, String(l.src[:addr]))
			l.event.push(nginxRemoteUser, dashNull(l.src[user:at-1]))
			l.event.push(nginxTime, t)
			l.pos = at + nginxTimeBytes
			return nil
		}
		at++
	}
}

const nginxTimeBytes = len("[30/Nov/2026:10:00:00 +0000]")

// nginxTimeAt reads [30/Nov/2026:10:00:00 +0000] at the start of b.
func nginxTimeAt(b []byte) (Value, bool) {
	if len(b) < nginxTimeBytes || b[0] != '[' || b[3] != '/' || b[7] != '/' || b[12] != ':' || b[15] != ':' || b[18] != ':' || b[21] != ' ' || b[22] != '+' && b[22] != '-' || b[27] != ']' {
		return Value{}, false
	}
	day, month, year := pair(b[1], b[2]), nginxMonth(b[4:7]), pair(b[8], b[9])*100+pair(b[10], b[11])
	hour, minute, second := pair(b[13], b[14]), pair(b[16], b[17]), pair(b[19], b[20])
	zoneHours, zoneMinutes := pair(b[23], b[24]), pair(b[25], b[26])
	if year < 0 || !validDate(year, month, day) || uint64(hour) > 23 || uint64(minute) > 59 || uint64(second) > 60 || uint64(zoneHours) > 23 || uint64(zoneMinutes) > 59 {
		return Value{}, false
	}
	zone := zoneHours*3600 + zoneMinutes*60
	if b[22] == '-' {
		zone = -zone
	}
	seconds := daysOf(year, month, day)*secondsPerDay + hour*3600 + minute*60 + second - zone
	return Value{kind: KindTime, num: uint64(seconds), zone: int32(zone)}, true
}

// nginxMonth is 1 for Jan up to 12 for Dec, 0 for anything else.
func nginxMonth(b []byte) int64 {
	switch alias(b) {
	case "Jan":
		return 1
	case "Feb":
		return 2
	case "Mar":
		return 3
	case "Apr":
		return 4
	case "May":
		return 5
	case "Jun":
		return 6
	case "Jul":
		return 7
	case "Aug":
		return 8
	case "Sep":
		return 9
	case "Oct":
		return 10
	case "Nov":
		return 11
	case "Dec":
		return 12
	}
	return 0
}

// quoted reads a blank and a string in quotes and returns what is between
// them, escapes and all.
func (l *nginxLine) quoted(want string) ([]byte, error) {
	b := l.src[l.pos:]
	if len(b) < 2 || b[0] != ' ' || b[1] != '"' {
		return nil, l.fail(want)
	}
	for i := 2; ; {
		n := bytes.IndexByte(b[i:], '"')
		if n < 0 {
			return nil, l.fail("the quotes are not closed")
		}
		if i += n; !escapedAt(b[2:i]) {
			l.pos += i + 1
			return b[2:i:i], nil
		}
		i++
	}
}

// escapedAt says that what follows b is escaped: b ends in an odd number of backslashes.
func escapedAt(b []byte) bool {
	n := len(b)
	for n > 0 && b[n-1] == '\\' {
		n--
	}
	return (len(b)-n)%2 == 1
}

// request sets method, path, query and protocol, and says whether the request
// is not one. Its parts are cut before they are unescaped: an escaped blank or
// question mark is none.
func (l *nginxLine) request(b []byte) (malformed bool) {
	method, target, ok := bytes.Cut(b, []byte(" "))
	target, protocol := cutProtocol(target)
	if !ok || !isMethod(method) || len(target) == 0 {
		for _, name := range [...]string{nginxMethod, nginxPath, nginxQuery, nginxProtocol} {
			l.event.push(name, Null())
		}
		return true
	}
	path, query, hasQuery := bytes.Cut(target, []byte("?"))
	l.event.push(nginxMethod, String(method))
	l.event.push(nginxPath, String(l.unescape(path)))
	if hasQuery {
		l.event.push(nginxQuery, String(l.unescape(query)))
	} else {
		l.event.push(nginxQuery, Null())
	}
	if protocol == nil { // HTTP/0.9
		l.event.push(nginxProtocol, Null())
	} else {
		l.event.push(nginxProtocol, String(protocol))
	}
	return false
}

// cutProtocol cuts HTTP/1.1 off the end of a request. Only what is named so is
// a protocol: some clients send blanks in the target.
func cutProtocol(b []byte) (target, protocol []byte) {
	i := bytes.LastIndexByte(b, ' ')
	if i < 0 || !bytes.HasPrefix(b[i+1:], []byte("HTTP/")) {
		return b, nil
	}
	return b[:i:i], b[i+1:]
}

// isMethod says that b is a token of letters, digits, - and _.
func isMethod(b []byte) bool {
	for _, c := range b {
		if !(c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z' || c == '-' || c == '_' || c >= '0' && c <= '9') {
			return false
		}
	}
	return len(b) > 0
}

// numbers reads the status and the bytes sent.
func (l *nginxLine) numbers() error {
	status, ok := l.number()
	if !ok {
		return l.fail("want the status, a number")
	}
	sent, ok := l.number()
	if !ok {
		return l.fail("want the bytes sent, a number or -")
	}
	l.event.push(nginxStatus, status)
	l.event.push(nginxBytes, sent)
	return nil
}

// number reads a blank and a number of at most 18 digits, or -, which is 0.
func (l *nginxLine) number() (Value, bool) {
	b := l.src[l.pos:]
	if len(b) < 2 || b[0] != ' ' {
		return Value{}, false
	}
	i := 1
	if b[1] == '-' {
		i = 2
	}
	var n int64
	for ; i < len(b) && b[i]-'0' <= 9; i++ {
		n = n*10 + int64(b[i]-'0')
	}
	if i == 1 || i > 19 || i < len(b) && b[i] != ' ' || b[1] == '-' && i > 2 {
		return Value{}, false
	}
	l.pos += i
	return Int(n), true
}

// quotedFields reads referer and user agent, which the common log format has not.
func (l *nginxLine) quotedFields() error {
	if len(bytes.TrimSpace(l.src[l.pos:])) == 0 {
		l.event.push(nginxReferer, Null())
		l.event.push(nginxUserAgent, Null())
		return nil
	}
	for _, name := range [...]string{nginxReferer, nginxUserAgent} {
		b, err := l.quoted("want referer and user agent in quotes")
		if err != nil {
			return err
		}
		l.event.push(name, dashNull(l.unescape(b)))
	}
	return nil
}

// dashNull is null for - and for nothing.
func dashNull(b []byte) Value {
	if len(b) == 0 || len(b) == 1 && b[0] == '-' {
		return Null()
	}
	return String(b)
}

// unescape returns b itself when nothing in it is escaped.
func (l *nginxLine) unescape(b []byte) []byte {
	i := bytes.IndexByte(b, '\\')
	if i < 0 {
		return b
	}
	arena := l.event.arena
	from := len(arena)
	for i >= 0 {
		arena = append(arena, b[:i]...)
		c, n := nginxEscape(b[i:])
		arena = append(arena, c)
		b = b[i+n:]
		i = bytes.IndexByte(b, '\\')
	}
	arena = append(arena, b...)
	l.event.arena = arena
	return arena[from:len(arena):len(arena)]
}

// nginxEscape reads the escape at the start of b: the byte it stands for and
// its length. A backslash that begins none stands for itself.
func nginxEscape(b []byte) (c byte, n int) {
	if len(b) < 2 {
		return '\\', 1
	}
	switch b[1] {
	case '"', '\\':
		return b[1], 2
	case 'b', 'f', 'n', 'r', 't':
		return unescaped(b[1]), 2
	case 'v':
		return '\v', 2
	case 'x':
		if len(b) >= 4 {
			high, ok1 := hexDigit(b[2])
			low, ok2 := hexDigit(b[3])
			if ok1 && ok2 {
				return high<<4 | low, 4
			}
		}
	}
	return '\\', 1
}
