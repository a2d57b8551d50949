//go:build !linux

package commitlog

// syncData makes a file's content and size durable.
func syncData(f File) error { return f.Sync() }
