package pipelines

import "testing"

const benchLine = `203.0.113.195 - - [30/Nov/2026:10:00:00 +0000] "GET /products/shoes?page=2&sort=price HTTP/1.1" 200 5123 "https://shop.example.com/" "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/131.0.0.0 Safari/537.36"`

func BenchmarkNginxParse(b *testing.B) {
	e := new(Event)
	line := []byte(benchLine)
	b.SetBytes(int64(len(line)))
	b.ReportAllocs()
	for b.Loop() {
		e.Reset(line)
		if err := parseNginx(e); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkNginxParseToJSON(b *testing.B) {
	e := new(Event)
	line := []byte(benchLine)
	var out []byte
	b.SetBytes(int64(len(line)))
	b.ReportAllocs()
	for b.Loop() {
		e.Reset(line)
		if err := parseNginx(e); err != nil {
			b.Fatal(err)
		}
		out = e.AppendJSON(out[:0])
	}
}

func BenchmarkJSONDecode(b *testing.B) {
	e := new(Event)
	e.Reset([]byte(benchLine))
	if err := parseNginx(e); err != nil {
		b.Fatal(err)
	}
	record := e.AppendJSON(nil)
	b.SetBytes(int64(len(record)))
	b.ReportAllocs()
	for b.Loop() {
		e.Reset(record)
		if err := e.DecodeJSON(record); err != nil {
			b.Fatal(err)
		}
	}
}
