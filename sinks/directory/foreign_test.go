package directory

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/sluice-io/sluice/internal/testenv"
)

// TestClickHouseReadsTheFiles has a reader that shares no code with the writer read every format and compression.
func TestClickHouseReadsTheFiles(t *testing.T) {
	server := testenv.ClickHouse(t)
	for _, c := range []struct{ format, compression string }{
		{"parquet", "none"}, {"parquet", "gzip"}, {"parquet", "snappy"}, {"parquet", "lz4"}, {"parquet", "zstd"},
		{"json", "none"}, {"json", "gzip"}, {"json", "zstd"},
		{"avro", "none"}, {"avro", "deflate"}, {"avro", "snappy"}, {"avro", "zstd"},
	} {
		t.Run(c.format+"-"+c.compression, func(t *testing.T) {
			r := newRig(t, jsonTopic, "    format: "+c.format+"\n    compression: "+c.compression+"\n")
			values := make([]string, 5000)
			for i := range values {
				values[i] = fmt.Sprintf(`{"n":%d,"s":"value %d","f":%d.5,"same":"x","b":true}`, i, i, i)
			}
			r.write(0, values...)
			name := r.names()[len(r.names())-1]
			text, err := os.ReadFile(filepath.Join(r.dir, name))
			if err != nil {
				t.Fatal(err)
			}
			name = c.format + c.compression + name
			if err := os.WriteFile(filepath.Join(server.Dir, name), text, 0o644); err != nil {
				t.Fatal(err)
			}
			format := map[string]string{"parquet": "Parquet", "json": "JSONEachRow", "avro": "Avro"}[c.format]
			got := server.Query(t, fmt.Sprintf(`SELECT count(), uniqExact(_offset), countIf(n = _offset AND s = concat('value ', toString(_offset)) AND f = _offset + 0.5
				AND same = 'x' AND b AND _topic = 'p' AND _partition = 3) FROM file('%s', '%s')`, name, format))
			if got != "5000\t5000\t5000" {
				t.Error(got)
			}
			if c.format != "json" {
				if got := server.Query(t, fmt.Sprintf("SELECT toString(_time) FROM file('%s', %s) LIMIT 1 SETTINGS session_timezone = 'UTC'", name, format)); got != "2026-11-30 10:00:00.123456" {
					t.Error(got)
				}
			}
		})
	}
}
