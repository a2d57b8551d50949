package api

import (
	"testing"

	"github.com/sluice-io/sluice/broker/server"
	"github.com/sluice-io/sluice/internal/record"
)

// FuzzProduce decodes, checks and appends whatever comes.
func FuzzProduce(f *testing.F) {
	n := newNode(f)
	n.topic("t", topicOptions{partitions: 2})
	for version := int16(3); version <= 13; version++ {
		for _, codec := range []record.Codec{record.None, record.Gzip, record.Snappy, record.LZ4, record.Zstd} {
			req := produceTo("t", 0, version, n.batchOf(record.BuildOptions{Codec: codec}, "a", "b"))
			f.Add(version, req.AppendTo(nil))
		}
	}
	f.Fuzz(func(t *testing.T, version int16, body []byte) {
		if version < 3 || version > 13 {
			return
		}
		var q produceRequest
		if err := q.decode(version, body); err != nil {
			return
		}
		n.api.appendAll(&q)
		if b, codesAt := n.api.encodeProduce(&q, ""); q.acks == acksAll && len(codesAt) != len(q.parts) || len(b) == 0 {
			t.Errorf("%d codes for %d partitions", len(codesAt), len(q.parts))
		}
	})
}

// FuzzFetch decodes, reads and answers whatever comes.
func FuzzFetch(f *testing.F) {
	n := newNode(f)
	n.topic("t", topicOptions{partitions: 2})
	n.fill("t", "a", "b", "c")
	for version := int16(4); version <= 18; version++ {
		f.Add(version, fetchFrom("t", 0, version, 1).AppendTo(nil))
	}
	f.Fuzz(func(t *testing.T, version int16, body []byte) {
		if version < 4 || version > 18 {
			return
		}
		ft := fetch{a: n.api, r: &server.Request{Conn: new(server.Conn)}, version: version}
		if err := ft.decode(body); err != nil {
			return
		}
		ft.lookUp()
		ft.read()
		for _, p := range ft.response().Parts {
			if p.Release != nil {
				p.Release()
			}
		}
	})
}
