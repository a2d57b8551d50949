//go:build !linux || !(amd64 || arm64)

package tail

import "os"

func readAt(f *os.File, dst []byte, at int64) (n int, quick bool, err error) {
	n, err = f.ReadAt(dst, at)
	return n, false, err
}

func quickInfoOf(f *os.File) (Info, error) { return InfoOf(f) }
