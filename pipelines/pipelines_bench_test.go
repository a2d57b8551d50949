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

// BenchmarkAgent is what the agent does to a line of accessPipeline.
func BenchmarkAgent(b *testing.B) {
	chain, err := parseOne(b, accessPipeline).NewProcess()
	if err != nil {
		b.Fatal(err)
	}
	e := new(Event)
	line := []byte(benchLine)
	var out []byte
	b.SetBytes(int64(len(line)))
	b.ReportAllocs()
	for b.Loop() {
		e.Reset(line)
		if r := chain.Apply(e); r.Outcome != Keep {
			b.Fatal(r)
		}
		out = e.AppendJSON(out[:0])
	}
}

// BenchmarkRow is what a worker does to a record before its destination's encoding.
func BenchmarkRow(b *testing.B) {
	p := parseOne(b, accessPipeline)
	columns, err := p.Sinks[0].NewColumns()
	if err != nil {
		b.Fatal(err)
	}
	e := new(Event)
	e.Reset([]byte(benchLine))
	if err := parseNginx(e); err != nil {
		b.Fatal(err)
	}
	record := e.AppendJSON(nil)
	b.SetBytes(int64(len(record)))
	b.ReportAllocs()
	for b.Loop() {
		if err := p.ReadRecord(e, Meta{}, record); err != nil {
			b.Fatal(err)
		}
		var v Value
		for i := range columns.Names() {
			if err := columns.Eval(e, i, &v); err != nil {
				b.Fatal(err)
			}
		}
	}
}

func BenchmarkExpression(b *testing.B) {
	e := new(Event)
	e.Reset([]byte(benchLine))
	if err := parseNginx(e); err != nil {
		b.Fatal(err)
	}
	for _, text := range []string{"path", `path startsWith "/healthz"`, `status >= 500 and method == "GET"`, "bytes > 1000 ? 1 : 0", `lower(path) + "x"`} {
		b.Run(text, func(b *testing.B) {
			x, err := (&Source{Text: text}).compile()
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			var v Value
			for b.Loop() {
				if x.cond != nil {
					_, evalErr := x.Condition(e)
					if evalErr != nil {
						b.Fatal(evalErr)
					}
					continue
				}
				if err := x.Eval(e, &v); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
