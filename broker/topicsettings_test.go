package broker

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// A level changes how large a batch is that the broker compresses, and no record.
func TestCompressionLevels(t *testing.T) {
	n := startNode(t, testConfig(t))
	var text []byte
	for i := range 20_000 {
		text = fmt.Appendf(text, "GET /path/%d?q=%x HTTP/1.1 ", i%977, i*i%65_521)
	}
	for _, tc := range []struct{ codec, fast, thorough string }{{"gzip", "1", "9"}, {"lz4", "9", "17"}, {"zstd", "-5", "19"}} {
		sizes := map[string]int64{}
		for _, level := range []string{tc.fast, tc.thorough} {
			topic := tc.codec + level
			n.createTopic(t, topic, 1, map[string]*string{"compression.type": ptr(tc.codec), "compression." + tc.codec + ".level": ptr(level)})
			cl := n.client(t, kgo.ProducerBatchCompression(kgo.NoCompression()), kgo.ConsumeTopics(topic))
			if err := cl.ProduceSync(t.Context(), &kgo.Record{Topic: topic, Value: text}).FirstErr(); err != nil {
				t.Fatal(err)
			}
			if got := consume(t, cl, 1)[0].Value; !bytes.Equal(got, text) {
				t.Errorf("%s: the record has changed", topic)
			}
			sizes[level] = n.partitions.Get(topic, 0).Log().Size()
		}
		if sizes[tc.thorough] >= sizes[tc.fast] || sizes[tc.fast] >= int64(len(text)) {
			t.Errorf("%s: of %d bytes %d at level %s and %d at %s", tc.codec, len(text), sizes[tc.fast], tc.fast, sizes[tc.thorough], tc.thorough)
		}
	}
}

// What expands to more than max.decompressed.message.bytes is refused with the
// code that Kafka 4.4 answers; without compression the setting says nothing.
func TestMaxDecompressedBytes(t *testing.T) {
	n := startNode(t, testConfig(t))
	n.createTopic(t, "t", 1, map[string]*string{"max.decompressed.message.bytes": ptr("1000")})
	for _, codec := range []kgo.CompressionCodec{
		kgo.GzipCompression(), kgo.SnappyCompression(), kgo.Lz4Compression(), kgo.ZstdCompression(), kgo.NoCompression(),
	} {
		cl := n.client(t, kgo.ProducerBatchCompression(codec))
		for size, want := range map[int]error{950: nil, 10_000: kerr.InvalidRecord} {
			if codec == kgo.NoCompression() {
				want = nil
			}
			err := cl.ProduceSync(t.Context(), &kgo.Record{Topic: "t", Value: make([]byte, size)}).FirstErr()
			if !errors.Is(err, want) {
				t.Errorf("%v, %d bytes: %v, want %v", codec, size, err, want)
			}
		}
	}
}
