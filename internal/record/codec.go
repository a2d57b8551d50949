package record

import "fmt"

// Codec is the compression of a batch's records, numbered as on the wire.
type Codec int8

// The codecs of the Kafka protocol.
const (
	None   Codec = 0
	Gzip   Codec = 1
	Snappy Codec = 2
	LZ4    Codec = 3
	Zstd   Codec = 4
)

var codecNames = [...]string{None: "none", Gzip: "gzip", Snappy: "snappy", LZ4: "lz4", Zstd: "zstd"}

// String returns the name that Kafka's compression.type uses.
func (c Codec) String() string {
	if !c.Valid() {
		return fmt.Sprintf("codec(%d)", int8(c))
	}
	return codecNames[c]
}

// Valid says whether the codec is one of the protocol's.
func (c Codec) Valid() bool { return c >= None && c <= Zstd }

// ParseCodec reads a name as in Kafka's compression.type. "uncompressed" is
// None, as in a topic's setting.
func ParseCodec(name string) (Codec, error) {
	if name == "uncompressed" {
		return None, nil
	}
	for c, n := range codecNames {
		if n == name {
			return Codec(c), nil
		}
	}
	return None, fmt.Errorf("unknown compression %q: use none, gzip, snappy, lz4 or zstd", name)
}
