package clickhouse

import (
	"bytes"
	"testing"

	"github.com/sluice-io/sluice/pipelines"
)

// TestCompressionByWhereTheServerIs: to a server of this machine nothing is compressed, unless the pipeline says so.
func TestCompressionByWhereTheServerIs(t *testing.T) {
	for addr, want := range map[string]pipelines.Compression{
		"127.0.0.1:9000": pipelines.CompressionNone, "localhost:9000": pipelines.CompressionNone, "[::1]:9000": pipelines.CompressionNone,
		"10.0.0.7:9000": pipelines.CompressionLZ4, "ch-1:9000": pipelines.CompressionLZ4, "localhost.example:9000": pipelines.CompressionLZ4,
	} {
		if got := compressionTo(addr, pipelines.CompressionAuto); got != want {
			t.Errorf("%s: %s, want %s", addr, got, want)
		}
		if got := compressionTo(addr, pipelines.CompressionZstd); got != pipelines.CompressionZstd {
			t.Errorf("%s: %s, though zstd is asked for", addr, got)
		}
	}
}

// TestConstantsAreOneValue: a constant has its value in each row, whatever their number.
func TestConstantsAreOneValue(t *testing.T) {
	for _, n := range []int{0, 1, 2, 3, 1000} {
		c, err := newConstant("String", true)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.set(pipelines.StringOf("abc"), n); err != nil {
			t.Fatal(err)
		}
		if want := bytes.Repeat([]byte("\x03abc"), n); !bytes.Equal(c.data, want) || c.rows() != n {
			t.Errorf("%d rows: %d bytes, %d rows", n, len(c.data), c.rows())
		}
		low, err := newConstant("LowCardinality(String)", true)
		if err != nil {
			t.Fatal(err)
		}
		if err := low.set(pipelines.StringOf("abc"), n); err != nil {
			t.Fatal(err)
		}
		if want := 8 + 8 + 4 + 8 + n; len(low.data) != want || low.typ() != "LowCardinality(String)" {
			t.Errorf("%d rows of a dictionary: %d bytes, want %d; %s", n, len(low.data), want, low.typ())
		}
	}
	if old, err := newConstant("LowCardinality(String)", false); err != nil || old.typ() != "String" {
		t.Errorf("an old server gets %v, %v", old, err)
	}
}
