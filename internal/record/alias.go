package record

import "unsafe"

// aliasString is a string over b's own bytes, so that a header key costs no
// allocation. It is valid as long as b is and is not written to.
func aliasString(b []byte) string {
	return unsafe.String(unsafe.SliceData(b), len(b))
}
