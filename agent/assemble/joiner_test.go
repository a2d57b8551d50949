package assemble

// Record is some lines as one text.
type Record struct {
	Text []byte // lines joined by newlines; good until the next call of the joiner
	// From and To are the places of the first line's beginning and the last
	// one's end, as given to Add.
	From, To int64
	Lines    int
	// Split says that a limit ended the record: what follows belongs to it.
	Split bool
}

// Joiner holds lines until their record is whole, as an input does that cannot
// read them again. The tests look at the records that verdicts make through it.
type Joiner struct {
	assembler *Assembler
	record    Record
}

// NewJoiner returns a joiner that holds nothing.
func NewJoiner(cfg Config) *Joiner { return &Joiner{assembler: New(cfg)} }

// Add takes a line and hands over the records that are whole by it: none, one,
// or the one before and the line itself. The line is copied.
func (j *Joiner) Add(line []byte, from, to int64, take func(Record)) {
	verdict := j.assembler.Line(line)
	if verdict&Opens != 0 {
		j.record.Split = verdict&Split != 0
		j.take(take)
	}
	r := &j.record
	if r.Lines == 0 {
		r.From = from
	} else {
		r.Text = append(r.Text, '\n')
	}
	r.Text = append(r.Text, line...)
	r.Lines++
	r.To = to
	if verdict&Closes != 0 {
		j.take(take)
	}
}

// Flush hands over what is held: no line came for a while, or none will.
func (j *Joiner) Flush(take func(Record)) {
	j.take(take)
	j.assembler.Reset()
}

// Held is where the first line that is held begins. A position must not pass
// it.
func (j *Joiner) Held() (from int64, ok bool) { return j.record.From, j.record.Lines > 0 }

func (j *Joiner) take(take func(Record)) {
	if j.record.Lines > 0 {
		take(j.record)
	}
	j.record = Record{Text: j.record.Text[:0]}
}
