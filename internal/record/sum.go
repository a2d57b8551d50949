package record

import (
	"encoding/binary"
	"hash/crc32"
)

// castagnoliPolynomial is CRC-32C's, its lowest power in the highest bit.
const castagnoliPolynomial = 0x82f63b78

// squares are x, x^2, x^4, x^8, ... modulo the polynomial.
var squares = squareTable()

func squareTable() (t [32]uint32) {
	t[0] = 1 << 30
	for i := 1; i < len(t); i++ {
		t[i] = multiply(t[i-1], t[i-1])
	}
	return t
}

// multiply is the product of two polynomials modulo CRC-32C's.
func multiply(a, b uint32) (product uint32) {
	for ; a != 0; a <<= 1 {
		if a&(1<<31) != 0 {
			product ^= b
		}
		low := b & 1
		b >>= 1
		if low != 0 {
			b ^= castagnoliPolynomial
		}
	}
	return product
}

// shift is what a CRC becomes when n zero bytes follow, but for what the CRC's own start and end add, which cancels where two are compared.
func shift(crc uint32, n int) uint32 {
	factor := uint32(1) << 31 // x^0
	for power := 3; n > 0; power++ {
		if n&1 != 0 {
			factor = multiply(squares[power%len(squares)], factor)
		}
		n >>= 1
	}
	return multiply(factor, crc)
}

// CombineSums is the CRC-32C of two pieces of bytes, one after the other, from those of each and the length of the second.
func CombineSums(first, second uint32, secondBytes int) uint32 {
	return shift(first, secondBytes) ^ second
}

// Sum is the CRC-32C of all bytes of the batch, worked out of the batch's own checksum: it is right as far as that is, and costs the same
// however large the batch is.
func (b Batch) Sum() uint32 {
	records := b.CRC() ^ shift(b.headerSum(), len(b)-HeaderBytes)
	return CombineSums(crc32.Checksum(b[:HeaderBytes], castagnoli), records, len(b)-HeaderBytes)
}

// headerSum is the CRC-32C of what the batch's checksum covers of the header.
func (b Batch) headerSum() uint32 { return crc32.Checksum(b[attributesAt:HeaderBytes], castagnoli) }

// renewCRC brings the checksum in line with a header that changed. before is what headerSum was. A checksum that was wrong stays wrong.
func (b Batch) renewCRC(before uint32) {
	binary.BigEndian.PutUint32(b[crcAt:], b.CRC()^shift(before^b.headerSum(), len(b)-HeaderBytes))
}
