package commitlog

import (
	"errors"
	"fmt"
	"io"
	"os"
)

// writeUnsynced writes a file anew, without making it durable.
func writeUnsynced(fs FS, path string, data []byte) error {
	f, err := fs.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_RDWR)
	if err != nil {
		return err
	}
	if _, err := f.WriteAt(data, 0); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}

// syncFile makes a closed file durable.
func syncFile(fs FS, path string) error {
	f, err := fs.OpenFile(path, os.O_RDWR)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}

// readAll reads a file of at most limit bytes from its start.
func readAll(f io.ReaderAt, limit int64) ([]byte, error) {
	data, err := io.ReadAll(io.NewSectionReader(f, 0, limit+1))
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if int64(len(data)) > limit {
		return nil, fmt.Errorf("larger than %d bytes", limit)
	}
	return data, nil
}
