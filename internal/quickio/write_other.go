//go:build !linux || !(amd64 || arm64)

package quickio

import "os"

func writeQuickly(file *os.File, data []byte, at int64) (int, error) { return file.WriteAt(data, at) }
