// Package tail follows files: it finds them, knows them again, and hands over
// slices of their lines in blocks.
//
// # One file
//
// A [File] is read by offset in large blocks. A block begins with the bytes
// that were read last before the position (the window), so that every read
// verifies that the file still is what it was: a file that was truncated and
// written again, to whatever size, shows other bytes there. What follows the
// last newline is not consumed; the next read begins with it again. There is
// therefore no state between two reads but the position and the window, and a
// line is never copied: a [Line] is a place in its block.
//
// # Who a file is
//
// A file is known by device and inode and by its content: a [Position] holds
// checksums of the file's head, which grow with the file, and of the bytes
// before the offset. Both are compared before a stored position is used. The
// name is a label.
//
// # Finding files
//
// A [Scanner] expands the patterns and is the truth. [Hints] are change events
// of directories: they say where to look at once, and may be missing.
//
// The package starts no goroutine but the one of Hints and reads no clock.
package tail
