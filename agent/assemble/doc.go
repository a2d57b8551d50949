// Package assemble makes records of lines: those that belong together by
// patterns (a stack trace), and those that a container runtime has cut into
// parts. It decides only: lines in, records out. It reads no clock, starts no
// goroutine and knows no file, so that every input uses the same rules.
//
// An [Assembler] says of each line whether it opens a record, or closes one.
// Who holds the bytes is up to the input: the file input leaves them in the
// file until a record is whole, and streams keep them.
package assemble
