package sinks

import (
	"errors"
	"fmt"
)

// errTooManyLetters stops a partition: so many of its records cannot be stored that the mapping or the table is wrong, not the records.
var errTooManyLetters = errors.New("too large a share of the records cannot be stored")

// The share of dead letters is taken over the last records of a partition, and not before there are enough of them.
const (
	shareRecordsMin = 100
	shareRecordsMax = 1000 // what came before a batch counts as so many records at most
)

// letterShare is the share of dead letters among a partition's last records. Used by one write at a time.
type letterShare struct{ records, letters float64 }

// check says whether a batch may send its dead letters.
func (s letterShare) check(t *tally, limit float64) error {
	records, letters := s.records+float64(t.consumed-t.found), s.letters+float64(len(t.letters))
	if len(t.letters) == 0 || records < shareRecordsMin || letters <= limit*records {
		return nil
	}
	l := t.letters[0]
	return fmt.Errorf("%w: %.0f of the last %.0f, more than errors.dead_letter_share allows (%g%%); nothing of this batch is stored and no dead letter of it is sent; the first is offset %d, %s: %s",
		errTooManyLetters, letters, records, limit*100, l.record.Offset, l.stage, l.reason)
}

// add counts a batch that is stored.
func (s *letterShare) add(t *tally) {
	s.records += float64(t.consumed - t.found)
	s.letters += float64(len(t.letters))
	if s.records > shareRecordsMax {
		s.letters *= shareRecordsMax / s.records
		s.records = shareRecordsMax
	}
}
