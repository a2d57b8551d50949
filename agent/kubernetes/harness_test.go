package kubernetes

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"regexp"
	"testing"
	"time"
)

func matches(pattern, text string) bool { return regexp.MustCompile(pattern).MatchString(text) }

// passing is a proxy before a server, which calls before with each request.
func passing(t *testing.T, to string, before func(*http.Request)) string {
	t.Helper()
	u, err := url.Parse(to)
	if err != nil {
		t.Fatal(err)
	}
	next := httputil.NewSingleHostReverseProxy(u)
	next.FlushInterval = -1
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		before(req)
		next.ServeHTTP(w, req)
	}))
	t.Cleanup(srv.CloseClientConnections)
	t.Cleanup(srv.Close)
	return srv.URL
}

func FuzzObjects(f *testing.F) {
	f.Add([]byte(`{"metadata":{"resourceVersion":"1"},"items":[{"metadata":{"uid":"u","labels":{"a":"b"}}}]}`))
	f.Add([]byte(`{"items":null,"metadata":{}}`))
	f.Fuzz(fuzzObjects)
}

// fuzzObjects reads a list and an event out of bytes, which must not take the process down.
func fuzzObjects(_ *testing.T, data []byte) {
	s := newStore(Config{PodsMax: 3})
	_, _, _ = readList(bytes.NewReader(data), func(o *object) { s.set(o, time.Unix(0, 0)) })
	_ = handEvent(&event{Type: eventModified, Object: data}, func(_ string, o *object) { s.set(o, time.Unix(0, 0)) })
	_ = handEvent(&event{Type: eventError, Object: data}, nil)
}
