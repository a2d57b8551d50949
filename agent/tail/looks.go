package tail

import "os"

// Looks are how files are looked at; nil asks the operating system alone. Tests that replay a seed give files identities of their own
// through it: which inodes a file system uses again is not the seed's choice.
type Looks struct {
	// As replaces what the system says of a file.
	As func(Info) Info
	// Born replaces when a file was made.
	Born func(ID) int64
}

// Stat looks at a path, through symbolic links.
func (l *Looks) Stat(path string) (Info, error) { return l.seen(Stat(path)) }

// InfoOf looks at an open file.
func (l *Looks) InfoOf(f *os.File) (Info, error) { return l.seen(InfoOf(f)) }

// quickInfoOf is InfoOf for a file of which a read just now was quick.
func (l *Looks) quickInfoOf(f *os.File) (Info, error) { return l.seen(quickInfoOf(f)) }

// seen is what a look at a file gives.
func (l *Looks) seen(info Info, err error) (Info, error) {
	if l != nil && err == nil {
		info = l.As(info)
	}
	return info, err
}

// BornOf is when an open file was made.
func (l *Looks) BornOf(f *os.File) int64 {
	if l == nil {
		return Born(f)
	}
	info, err := InfoOf(f)
	if err != nil {
		return 0
	}
	return l.Born(info.ID)
}
