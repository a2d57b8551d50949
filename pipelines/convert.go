package pipelines

import (
	"errors"
	"time"
)

// Why a value cannot be what a destination wants; matched with errors.Is.
var (
	ErrRange = errors.New("out of range")
	ErrType  = errors.New("wrong type")
	ErrNull  = errors.New("null")
)

// ConversionError says which value could not become what. It wraps ErrRange,
// ErrType or ErrNull.
type ConversionError struct {
	Value string // the value as text, cut at 100 bytes
	Kind  Kind
	To    string // "int8", "time", ...
	Err   error
}

// ToInt64 gives an integer: an integer, a number without fraction, a bool (0
// or 1), or a string that is one of the first two. It never wraps, rounds or clamps.
func (v Value) ToInt64() (int64, error) { return v.ToInt(64) }

// ToInt is ToInt64 for a signed integer of 8, 16, 32 or 64 bits.
func (v Value) ToInt(bits int) (int64, error) { panic("x") }

// ToUint64 is ToInt64 for an unsigned integer.
func (v Value) ToUint64() (uint64, error) { return v.ToUint(64) }

// ToUint is ToUint64 for an unsigned integer of 8, 16, 32 or 64 bits.
func (v Value) ToUint(bits int) (uint64, error) { panic("x") }

// ToFloat64 gives a number: a number, or a string that is one. An integer that
// float64 cannot hold exactly is rounded to the nearest, as everywhere; one
// beyond its range (1e400) is refused.
func (v Value) ToFloat64() (float64, error) { panic("x") }

// ToFloat32 is ToFloat64 for a float32: rounded to the nearest, refused beyond
// its range.
func (v Value) ToFloat32() (float32, error) { panic("x") }

// ToBool gives a bool: a bool, the integers 0 and 1, the strings true, false, 0, 1.
func (v Value) ToBool() (bool, error) { panic("x") }

// ToTime gives a time: a time, a string in RFC 3339 (a blank in place of the T
// is fine, the zone is needed), or a number of Unix seconds. Years are 1 to 9999.
func (v Value) ToTime() (time.Time, error) { panic("x") }

// AppendText appends the value as text: a string's own bytes, "" for null,
// RFC 3339 for a time, JSON for the others.
func (v Value) AppendText(dst []byte) []byte { panic("x") }

func (e *ConversionError) Error() string { return e.Err.Error() }
func (e *ConversionError) Unwrap() error { return e.Err }
