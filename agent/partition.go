package agent

// murmur2 is the hash by which Kafka's own producers choose a partition for a
// key, so that a key goes where theirs goes (org.apache.kafka.common.utils.Utils).
func murmur2(data []byte) uint32 {
	const seed, m, r = 0x9747b28c, 0x5bd1e995, 24
	h := uint32(seed) ^ uint32(len(data))
	for len(data) >= 4 {
		k := uint32(data[0]) | uint32(data[1])<<8 | uint32(data[2])<<16 | uint32(data[3])<<24
		k *= m
		k ^= k >> r
		h = h*m ^ k*m
		data = data[4:]
	}
	switch len(data) {
	case 3:
		h ^= uint32(data[2]) << 16
		fallthrough
	case 2:
		h ^= uint32(data[1]) << 8
		fallthrough
	case 1:
		h = (h ^ uint32(data[0])) * m
	}
	h = (h ^ h>>13) * m
	return h ^ h>>15
}

// partitionOf returns the partition of a key.
func partitionOf(key []byte, partitions int32) int32 {
	return int32(murmur2(key)&0x7fffffff) % partitions
}
