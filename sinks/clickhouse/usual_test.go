package clickhouse

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/sluice-io/sluice/pipelines"
)

// usualTypes are those with a short way, and some without.
var usualTypes = []string{
	"String", "LowCardinality(String)", "Int8", "Int16", "Int32", "Int64", "UInt8", "UInt16", "UInt32", "UInt64", "Float64", "Float32", "DateTime", "DateTime('UTC')", "DateTime64(0)",
	"DateTime64(3, 'UTC')", "DateTime64(8)", "DateTime64(9)", "IPv4", "IPv6", "Date", "Bool", "UUID", "FixedString(3)", "Decimal(9, 2)", "Enum8('a' = 1)",
}

// usualTexts are JSON values at the edges of the types.
func usualTexts() []string {
	all := strings.Fields(`null true false 0 1 -1 -0 127 128 -128 -129 255 256 32767 32768 -32768 -32769 65535 65536 2147483647 2147483648 -2147483648 -2147483649 4294967295 4294967296
		9223372036854775807 9223372036854775808 -9223372036854775808 18446744073709551615 18446744073709551616 999999999999999999 1000000000000000000
		0.5 1.0 1.5e3 0.1234567890123456789 123456789.123456 1e400 [] {} [1] {"a":1} "" "a" "1" "-1" "1.5" "abc" "abcd"
		"10.0.0.1" "255.255.255.255" "256.0.0.1" "01.2.3.4" "1.2.3" "1.2.3.4.5" "1..2.3" "1.2.3." "::1" "::ffff:1.2.3.4" "1.2.3.4%eth0" "0.0.0.0"
		"1970-01-01T00:00:00Z" "1969-12-31T23:59:59.999Z" "1900-01-01T00:00:00Z" "1899-12-31T23:59:59.999Z" "2106-02-07T06:28:15.9Z" "2106-02-07T06:28:16Z" "2262-04-11T23:47:16.854775807Z"
		"2262-04-11T23:47:17Z" "2299-12-31T23:59:59.999999999Z" "2300-01-01T00:00:00Z" "0000-01-01T00:00:00Z" "9999-12-31T23:59:59Z" "2026-11-30T10:00:00.123456789+02:00"
		"2026-11-30T10:00:00" "2026-11-30" "2026-02-29T10:00:00Z"`)
	all = append(all, `"2026-11-30 10:00:00Z"`, `"a\u0041b"`, `"`+strings.Repeat("x", 127)+`"`, `"`+strings.Repeat("x", 128)+`"`, `"`+strings.Repeat("x", 20_000)+`"`)
	return all
}

// TestUsualValues: what the short way takes is to the byte what the column's putter makes, and no more than that takes.
func TestUsualValues(t *testing.T) {
	values := []pipelines.Value{pipelines.Time(time.Unix(-1, 5)), pipelines.Time(time.Unix(1_700_000_000, 999_999_999)), pipelines.Time(time.Unix(1<<40, 0)), pipelines.Float(1.5), pipelines.Null()}
	for _, text := range usualTexts() {
		var e pipelines.Event
		if err := e.DecodeJSON([]byte(`{"v":` + text + `}`)); err != nil {
			t.Fatal(text, err)
		}
		v, _ := e.Get("v")
		values = append(values, v)
	}
	for _, typ := range usualTypes {
		taken := 0
		for _, v := range values {
			short, long := newTestLeaf(t, typ), newTestLeaf(t, typ)
			err := long.add(v)
			if !short.addUsual(&v) {
				if len(short.data) > 0 || short.n > 0 {
					t.Errorf("%s of %s: not taken, and added", typ, v.AppendJSON(nil))
				}
				continue
			}
			taken++
			if err != nil || !bytes.Equal(short.data, long.data) || short.n != long.n {
				t.Errorf("%s of %s: %x, want %x, %v", typ, v.AppendJSON(nil), short.data, long.data, err)
			}
		}
		if form := newTestLeaf(t, typ).usual.form; (form != formNone) != (taken > 0) {
			t.Errorf("%s: %d values were taken", typ, taken)
		}
	}
}

func newTestLeaf(t *testing.T, typ string) *leaf {
	t.Helper()
	c, err := newColumn(typ)
	if err != nil {
		t.Fatal(err)
	}
	return c.(*leaf)
}

// general takes every short way from a block.
func (b *block) general() {
	for i := range b.fields {
		f := &b.fields[i]
		if f.fixed, f.number = nil, nil; f.leaf != nil {
			f.leaf.usual = usual{}
			f.leaf = nil
			b.others = append(b.others, f.column)
		}
	}
}

// TestUsualRows fills two blocks with the same records, good ones and others, one of them without any short way: the same rows, the same refusals, the same marks.
func TestUsualRows(t *testing.T) {
	for _, misfit := range []string{"", ", misfit: {range: clamp, null: zero, time: record}"} {
		t.Run(misfit, func(t *testing.T) {
			spec, quick := usualBlock(t, misfit)
			_, plain := usualBlock(t, misfit)
			plain.general()
			r := rand.New(rand.NewPCG(1, 2))
			texts := usualTexts()
			var one, other pipelines.Event
			stored, refused := 0, 0
			for i := range 20_000 {
				src := usualRow(r, texts, i)
				meta := pipelines.Meta{Topic: "p", Offset: int64(i), Time: time.Unix(1_700_000_000, 0)}
				errs := [2]error{}
				for k, x := range []struct {
					e *pipelines.Event
					b *block
				}{{&one, quick}, {&other, plain}} {
					if k == 1 {
						*x.e = pipelines.Event{} // nothing of the event before
					}
					if err := spec.ReadRecord(x.e, meta, src); err != nil {
						t.Fatal(string(src), err)
					}
					errs[k] = x.b.Append(x.e)
				}
				if fmt.Sprint(errs[0]) != fmt.Sprint(errs[1]) {
					t.Fatalf("%s: %v, in the general way %v", src, errs[0], errs[1])
				}
				if errs[0] == nil {
					stored++
				} else {
					refused++
				}
			}
			if stored < 1000 || refused < 1000 || quick.Rows() != plain.Rows() {
				t.Errorf("%d stored, %d refused; %d and %d rows", stored, refused, quick.Rows(), plain.Rows())
			}
			for i := range quick.fields {
				a, b := columnBytes(quick.fields[i].column), columnBytes(plain.fields[i].column)
				if !bytes.Equal(a, b) || quick.fields[i].rows() != plain.fields[i].rows() {
					t.Errorf("column %s: %d bytes, in the general way %d", quick.fields[i].name, len(a), len(b))
				}
			}
		})
	}
}

func columnBytes(c column) (all []byte) {
	c.write(func(b []byte) { all = append(all, b...) })
	return all
}

// usualRow is a record of the access log; one in two has a value that is none of the usual.
func usualRow(r *rand.Rand, texts []string, i int) []byte {
	src := []byte(fmt.Sprintf(`{"ts":"2026-11-30T10:%02d:00.123Z","host":"web-%d","remote_addr":"10.0.%d.1","method":"GET","path":"/p/%d","status":%d,"bytes":%d,"referer":"","user_agent":"x","seconds":0.%d}`,
		i%60, i%8, i%256, i, 200+i%5, i, 1+i%97))
	if r.IntN(2) == 0 {
		return src
	}
	var e pipelines.Event
	if err := e.DecodeJSON(src); err != nil {
		panic(err)
	}
	name, _ := e.Field(r.IntN(e.Len()))
	if r.IntN(8) == 0 {
		e.Delete(name)
		return e.AppendJSON(nil)
	}
	var with pipelines.Event
	if err := with.DecodeJSON([]byte(`{"v":` + texts[r.IntN(len(texts))] + `}`)); err != nil {
		panic(err)
	}
	v, _ := with.Get("v")
	e.Set(name, v)
	return e.AppendJSON(nil)
}

func usualBlock(t *testing.T, misfit string) (*pipelines.Pipeline, *block) {
	t.Helper()
	pipes, err := pipelines.Parse("usual.yaml", []byte("pipeline: p\ntopic: {name: p}\nsink:\n  clickhouse: {addr: ['127.0.0.1:1'], table: t, columns: {ts: ts, host: host, remote_addr: remote_addr, method: method, "+
		"path: path, status: status, bytes: bytes, referer: referer, user_agent: '\"one\"', seconds: seconds}"+misfit+"}\n"))
	if err != nil {
		t.Fatal(err)
	}
	pipes[0].Topic.Value = pipelines.ValueEvent
	b, err := newBlock(pipes[0].Sinks[0], accessTable(t, pipes[0].Sinks[0]))
	if err != nil {
		t.Fatal(err)
	}
	return pipes[0], b
}
