package api

import (
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sluice-io/sluice/broker/server"
	"github.com/sluice-io/sluice/internal/record"
)

// FuzzRequest takes bytes for the body of each kind of request in each version
// that is served. Produce and Fetch, which have decoders of their own, are also
// carried out.
func FuzzRequest(f *testing.F) {
	n := newNode(f)
	n.topic("t", topicOptions{partitions: 2})
	n.fill("t", "a", "b", "c")
	for key := range n.api.routes {
		if rt := n.api.routeOf(int16(key)); rt != nil {
			for v := rt.min; v <= rt.max; v++ {
				f.Add(rt.key, v, exampleOf(rt.key, v).AppendTo(nil))
			}
		}
	}
	for version := int16(3); version <= 13; version++ {
		for _, codec := range []record.Codec{record.None, record.Gzip, record.Snappy, record.LZ4, record.Zstd} {
			req := produceTo("t", 0, version, n.batchOf(record.BuildOptions{Codec: codec}, "a", "b"))
			f.Add(int16(keyProduce), version, req.AppendTo(nil))
		}
	}
	for version := int16(4); version <= 18; version++ {
		f.Add(int16(keyFetch), version, fetchFrom("t", 0, version, 1).AppendTo(nil))
	}
	f.Fuzz(func(t *testing.T, key, version int16, body []byte) {
		rt, err := n.api.route(key, version)
		switch {
		case err != nil || version > rt.max:
		case key == keyProduce:
			fuzzProduce(t, n.api, version, body)
		case key == keyFetch:
			fuzzFetch(n.api, version, body)
		default:
			req := kmsg.RequestForKey(key)
			req.SetVersion(version)
			if req.ReadFrom(body) == nil {
				req.AppendTo(nil)
			}
		}
	})
}

// exampleOf is a request with its defaults.
func exampleOf(key, version int16) kmsg.Request {
	req := kmsg.RequestForKey(key)
	if d, ok := req.(interface{ Default() }); ok {
		d.Default()
	}
	req.SetVersion(version)
	return req
}

func fuzzProduce(t *testing.T, a *API, version int16, body []byte) {
	if version < 3 {
		return
	}
	var q produceRequest
	if err := q.decode(version, body); err != nil {
		return
	}
	a.appendAll(&q)
	if out := a.encodeProduce(&q, ""); q.acks == acksAll && len(out.marks) != len(q.parts) || len(out.b) == 0 {
		t.Errorf("%d codes for %d partitions", len(out.marks), len(q.parts))
	}
}

func fuzzFetch(a *API, version int16, body []byte) {
	ft := fetch{a: a, r: &server.Request{Conn: new(server.Conn)}, version: version}
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
}
