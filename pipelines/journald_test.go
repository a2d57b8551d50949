package pipelines

import (
	"strings"
	"testing"
)

func TestJournald(t *testing.T) {
	for _, c := range []struct{ name, in, want string }{
		{"text", `{"__CURSOR":"s=a;i=1","__REALTIME_TIMESTAMP":"1764496800123456","MESSAGE":"hello","PRIORITY":"6"}`,
			`{"__CURSOR":"s=a;i=1","__REALTIME_TIMESTAMP":"1764496800123456","MESSAGE":"hello","PRIORITY":"6","time":"2025-11-30T10:00:00.123456Z"}`},
		{"bytes that are text, with a newline", `{"__REALTIME_TIMESTAMP":"1764496800000000","MESSAGE":[104,105,10,195,188]}`,
			`{"__REALTIME_TIMESTAMP":"1764496800000000","MESSAGE":"hi\nü","time":"2025-11-30T10:00:00Z"}`},
		{"bytes that are no text stay as they are", `{"__REALTIME_TIMESTAMP":"1764496800000000","COREDUMP":[255,254]}`,
			`{"__REALTIME_TIMESTAMP":"1764496800000000","COREDUMP":[255,254],"time":"2025-11-30T10:00:00Z"}`},
		{"a field that comes twice", `{"__REALTIME_TIMESTAMP":"1764496800000000","OBJECT_PID":["1","2"],"EMPTY":[]}`,
			`{"__REALTIME_TIMESTAMP":"1764496800000000","OBJECT_PID":["1","2"],"EMPTY":[],"time":"2025-11-30T10:00:00Z"}`},
	} {
		var e Event
		e.Reset([]byte(c.in))
		if err := parseJournald(&e); err != nil || string(e.AppendJSON(nil)) != c.want {
			t.Errorf("%s:\nhave %s (%v)\nwant %s", c.name, e.AppendJSON(nil), err, c.want)
		}
	}
	var e Event
	for _, bad := range []string{`{"MESSAGE":"x"}`, `{"__REALTIME_TIMESTAMP":"soon"}`, `x`} {
		e.Reset([]byte(bad))
		if err := parseJournald(&e); err == nil || e.Parsed() || e.Len() > 0 {
			t.Errorf("%s: taken (%v)", bad, err)
		}
	}
	if err := parseJournald(&e); !strings.Contains(err.Error(), "want") {
		t.Error(err)
	}
}
