package server

import (
	"encoding/hex"
	"io"
	"log/slog"
	"net"
	"testing"
)

// FuzzRequestHeader parses what follows a frame's size.
func FuzzRequestHeader(f *testing.F) {
	for _, seed := range []string{
		"00030002000000070003616263aabb",
		"0003000200000008ffffaabb",
		"00030009ffffffff000161010501ffaabb",
		"00120003000000010000ffffffffff7f",
	} {
		b, _ := hex.DecodeString(seed)
		f.Add(b)
	}
	s := New(slog.New(slog.NewTextHandler(io.Discard, nil)), nil, Config{
		Flexible: func(_, version int16) bool { return version >= 9 },
	}, handlerFunc(echo))
	nc, other := net.Pipe()
	defer nc.Close()
	defer other.Close()
	c := s.newConn("", "", nc)
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := c.parse(&frame{buf: b})
		if err == nil && len(r.Body)+len(r.ClientID)+leastRequestBytes > len(b) {
			t.Errorf("body of %d bytes and client id of %d in a frame of %d", len(r.Body), len(r.ClientID), len(b))
		}
	})
}
