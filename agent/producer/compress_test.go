package producer

import (
	"bytes"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
)

func TestAutoCompression(t *testing.T) {
	behind := false
	c, err := compressorOf(KafkaConfig{CatchingUp: func() bool { return behind }})
	if err != nil {
		t.Fatal(err)
	}
	lines := []byte(strings.Repeat("GET /products/17 HTTP/1.1 200\n", 1000))
	for _, tc := range []struct {
		behind  bool
		oldOnly bool
		want    kgo.CompressionCodecType
	}{{false, false, kgo.CodecZstd}, {true, false, kgo.CodecSnappy}, {false, false, kgo.CodecZstd}, {false, true, kgo.CodecSnappy}} {
		behind = tc.behind
		var flags []kgo.CompressFlag
		if tc.oldOnly { // brokers that do not know zstd
			flags = append(flags, kgo.CompressDisableZstd)
		}
		out, codec := c.Compress(new(bytes.Buffer), lines, flags...)
		if codec != tc.want {
			t.Errorf("codec %d, want %d", codec, tc.want)
		}
		back, err := kgo.DefaultDecompressor().Decompress(out, codec)
		if err != nil || !bytes.Equal(back, lines) {
			t.Errorf("%v: decompressed to %d bytes", err, len(back))
		}
	}
	if _, err := compressorOf(KafkaConfig{Compression: "rar"}); err == nil {
		t.Error("an unknown codec was taken")
	}
}
