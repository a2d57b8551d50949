package pipelines

import (
	"strings"
	"testing"
	"time"
	_ "time/tzdata" // the zones of the tests, whatever the machine has
)

// taken is when the messages of the tests came.
var taken = time.Date(2026, 11, 30, 10, 0, 0, 0, time.UTC)

func syslogEvent(t testing.TB, message, zone string, at time.Time) (string, error) {
	parse, err := newSyslogParser(zone)
	if err != nil {
		t.Fatal(err)
	}
	var e Event
	e.Reset([]byte(message))
	e.Meta.Time = at
	if err := parse(&e); err != nil {
		if e.Len() > 0 || e.Parsed() {
			t.Errorf("%q: fields after an error", message)
		}
		return "", err
	}
	return string(e.AppendJSON(nil)), nil
}

func TestSyslog(t *testing.T) {
	for _, c := range []struct{ name, in, want string }{
		{"RFC 5424, example 1", `<34>1 2003-10-11T22:14:15.003Z mymachine.example.com su - ID47 - ` + "\xEF\xBB\xBF" + `'su root' failed for lonvick on /dev/pts/8`,
			`{"time":"2003-10-11T22:14:15.003Z","host":"mymachine.example.com","app":"su","procid":null,"msgid":"ID47","facility":"auth","severity":"crit","priority":34,"data":null,"message":"'su root' failed for lonvick on /dev/pts/8"}`},
		{"RFC 5424, example 2", `<165>1 2003-08-24T05:14:15.000003-07:00 192.0.2.1 myproc 8710 - - %% It's time to make the do-nuts.`,
			`{"time":"2003-08-24T05:14:15.000003-07:00","host":"192.0.2.1","app":"myproc","procid":"8710","msgid":null,"facility":"local4","severity":"notice","priority":165,"data":null,"message":"%% It's time to make the do-nuts."}`},
		{"RFC 5424, example 4: no message", `<165>1 2003-10-11T22:14:15.003Z h evntslog - ID47 [exampleSDID@32473 iut="3" eventSource="Application" eventID="1011"][examplePriority@32473 class="high"]`,
			`{"time":"2003-10-11T22:14:15.003Z","host":"h","app":"evntslog","procid":null,"msgid":"ID47","facility":"local4","severity":"notice","priority":165,"data":{"exampleSDID@32473":{"iut":"3","eventSource":"Application","eventID":"1011"},"examplePriority@32473":{"class":"high"}},"message":""}`},
		{"escapes in a value", `<0>1 - - - - - [a b="x\"y\\z\]w\n"] m`,
			`{"time":"2026-11-30T10:00:00Z","host":null,"app":null,"procid":null,"msgid":null,"facility":"kern","severity":"emerg","priority":0,"data":{"a":{"b":"x\"y\\z]w\\n"}},"message":"m"}`},
		{"RFC 3164, example 1", `<34>Oct 11 22:14:15 mymachine su: 'su root' failed for lonvick on /dev/pts/8`,
			`{"time":"2026-10-11T22:14:15Z","host":"mymachine","app":"su","procid":null,"msgid":null,"facility":"auth","severity":"crit","priority":34,"data":null,"message":"'su root' failed for lonvick on /dev/pts/8"}`},
		{"RFC 3164, example 2: no tag, and only a message", `<13>Use the BFG!`,
			`{"time":"2026-11-30T10:00:00Z","host":null,"app":null,"procid":null,"msgid":null,"facility":"user","severity":"notice","priority":13,"data":null,"message":"Use the BFG!"}`},
		{"RFC 3164, a day of one digit and a process", `<30>Nov  3 01:02:03 web-1 systemd-logind[412]: New session`,
			`{"time":"2026-11-03T01:02:03Z","host":"web-1","app":"systemd-logind","procid":"412","msgid":null,"facility":"daemon","severity":"info","priority":30,"data":null,"message":"New session"}`},
		{"a file's line, without priority", `Nov 30 09:59:59 web-1 cron[7]: (root) CMD (true)`,
			`{"time":"2026-11-30T09:59:59Z","host":"web-1","app":"cron","procid":"7","msgid":null,"facility":null,"severity":null,"priority":null,"data":null,"message":"(root) CMD (true)"}`},
		{"/dev/log: no host", `<13>Nov 30 10:00:00 logger[99]: hello`,
			`{"time":"2026-11-30T10:00:00Z","host":null,"app":"logger","procid":"99","msgid":null,"facility":"user","severity":"notice","priority":13,"data":null,"message":"hello"}`},
		{"rsyslog's forwarding: a time of RFC 3339", `<13>2026-11-30T11:00:00.123456+01:00 web-1 app: hello`,
			`{"time":"2026-11-30T11:00:00.123456+01:00","host":"web-1","app":"app","procid":null,"msgid":null,"facility":"user","severity":"notice","priority":13,"data":null,"message":"hello"}`},
		{"Cisco's: a year, a fraction and a colon", `<189>Nov 30 2026 10:00:00.250: %SYS-5-CONFIG_I: Configured`,
			`{"time":"2026-11-30T10:00:00.25Z","host":null,"app":"%SYS-5-CONFIG_I","procid":null,"msgid":null,"facility":"local7","severity":"notice","priority":189,"data":null,"message":"Configured"}`},
		{"the last year of the century is the nearest", `<13>Dec 31 23:59:59 h a: b`,
			`{"time":"2026-12-31T23:59:59Z","host":"h","app":"a","procid":null,"msgid":null,"facility":"user","severity":"notice","priority":13,"data":null,"message":"b"}`},
		{"a version that is none is RFC 3164", `<13>2 x`,
			`{"time":"2026-11-30T10:00:00Z","host":null,"app":null,"procid":null,"msgid":null,"facility":"user","severity":"notice","priority":13,"data":null,"message":"2 x"}`},
		{"a lone bracket", `<13>Nov 30 10:00:00 h app[12 x`,
			`{"time":"2026-11-30T10:00:00Z","host":"h","app":null,"procid":null,"msgid":null,"facility":"user","severity":"notice","priority":13,"data":null,"message":"app[12 x"}`},
	} {
		got, err := syslogEvent(t, c.in, "UTC", taken)
		if err != nil || got != c.want {
			t.Errorf("%s:\n in %s\nhave %s (%v)\nwant %s", c.name, c.in, got, err, c.want)
		}
	}
}

func TestSyslogRefused(t *testing.T) {
	for in, want := range map[string]string{
		"":                                   "byte 0: want a priority or a time",
		"hello":                              "byte 0: want a priority or a time",
		"<192>x":                             "byte 0: want a priority",
		"<>x":                                "byte 0: want a priority",
		"<1234>x":                            "byte 0: want a priority",
		"<1":                                 "byte 0: want a priority",
		"Nov 31 10:00:00 h a: b":             "byte 0: want a priority or a time",
		"<13>1 yesterday h a p m - x":        "byte 6: want a time of RFC 3339",
		"<13>1 - h a p":                      "byte 12: want a process ID",
		"<13>1 - h a p m [x":                 "want a name",
		"<13>1 - h a p m [x]y":               "byte 19: want a blank behind the structured data",
		`<13>1 - h a p m [x y="1]`:           `want " at the end of a value`,
		`<13>1 - h a p m [x y=1]`:            `want ="VALUE"`,
		"<13>1 - h a p m x":                  "want structured data",
		"<13>1 2026-11-30T10:00:60Z h a p m": "want a time",
	} {
		got, err := syslogEvent(t, in, "UTC", taken)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %s, %v; want an error with %q", in, got, err, want)
		}
	}
}

// The year of a time without one, zones, and local times that come twice or never.
func TestSyslogTime(t *testing.T) {
	at := func(s string) time.Time {
		v, err := time.Parse(time.RFC3339, s)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	for _, c := range []struct{ name, in, zone, taken, want string }{
		{"read after midnight of New Year", "Dec 31 23:59:59", "UTC", "2027-01-01T00:00:02Z", "2026-12-31T23:59:59Z"},
		{"a clock that is ahead at New Year", "Jan  1 00:00:01", "UTC", "2026-12-31T23:59:58Z", "2027-01-01T00:00:01Z"},
		{"half a year back", "Jun 15 00:00:00", "UTC", "2026-11-30T10:00:00Z", "2026-06-15T00:00:00Z"},
		{"the next year is nearer", "Apr 15 00:00:00", "UTC", "2026-11-30T10:00:00Z", "2027-04-15T00:00:00Z"},
		{"a leap day read in the year after", "Feb 29 12:00:00", "UTC", "2029-01-10T00:00:00Z", "2028-02-29T12:00:00Z"},
		{"New Year by the zone, not by UTC", "Jan  1 00:30:00", "Europe/Berlin", "2026-12-31T23:30:05Z", "2027-01-01T00:30:00+01:00"},
		{"summer time", "Jul  1 12:00:00", "Europe/Berlin", "2026-07-01T10:00:00Z", "2026-07-01T12:00:00+02:00"},
		{"the repeated hour, first", "Oct 25 02:30:00", "Europe/Berlin", "2026-10-25T00:30:10Z", "2026-10-25T02:30:00+02:00"},
		{"the repeated hour, second", "Oct 25 02:30:00", "Europe/Berlin", "2026-10-25T01:30:10Z", "2026-10-25T02:30:00+01:00"},
		{"the hour that is left out", "Mar 29 02:30:00", "Europe/Berlin", "2026-03-29T01:30:10Z", "2026-03-29T03:30:00+02:00"},
		{"west", "Nov 30 04:00:00", "America/New_York", "2026-11-30T10:00:00Z", "2026-11-30T04:00:00-05:00"},
		{"a year as written", "Nov 30 2001 04:00:00", "UTC", "2026-11-30T10:00:00Z", "2001-11-30T04:00:00Z"},
		{"a year behind the time", "Nov 30 04:00:00 2001", "UTC", "2026-11-30T10:00:00Z", "2001-11-30T04:00:00Z"},
	} {
		got, err := syslogEvent(t, "<13>"+c.in+" h a: b", c.zone, at(c.taken))
		if err != nil || !strings.HasPrefix(got, `{"time":"`+c.want+`",`) {
			t.Errorf("%s: %s (%v), want %s", c.name, got, err, c.want)
		}
	}
}

func FuzzSyslog(f *testing.F) {
	for _, seed := range []string{
		`<34>1 2003-10-11T22:14:15.003Z h su - ID47 [a@1 b="c\"" d="e"][f g="h"] m`, `<34>Oct 11 22:14:15 h su[1]: m`, `Feb 29 2000 01:02:03.4: m`, `<13>`, `<1>1 - - - - - -`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, message []byte) {
		parse, err := newSyslogParser("Europe/Berlin")
		if err != nil {
			t.Fatal(err)
		}
		var e, back Event
		e.Reset(message)
		e.Meta.Time = taken
		if parse(&e) != nil {
			return
		}
		if e.Len() != len(syslogFields) {
			t.Fatalf("%d fields", e.Len())
		}
		if text, _ := e.Get(syslogMessage); !strings.HasSuffix(string(message), string(text.Bytes())) {
			t.Fatalf("the message %q is not the end of %q", text.Bytes(), message)
		}
		if err := back.DecodeJSON(e.AppendJSON(nil)); err != nil {
			t.Fatalf("%s: %v", e.AppendJSON(nil), err)
		}
	})
}

func BenchmarkSyslog(b *testing.B) {
	for name, message := range map[string]string{
		"3164": `<34>Oct 11 22:14:15 mymachine su[1234]: 'su root' failed for lonvick on /dev/pts/8`,
		"5424": `<165>1 2003-10-11T22:14:15.003Z mymachine.example.com evntslog 12 ID47 [exampleSDID@32473 iut="3" eventSource="Application"] An application event log entry`,
	} {
		b.Run(name, func(b *testing.B) {
			parse, err := newSyslogParser("UTC")
			if err != nil {
				b.Fatal(err)
			}
			var e Event
			var out []byte
			raw := []byte(message)
			b.ReportAllocs()
			for b.Loop() {
				e.Reset(raw)
				e.Meta.Time = taken
				if err := parse(&e); err != nil {
					b.Fatal(err)
				}
				out = e.AppendJSON(out[:0])
			}
		})
	}
}
