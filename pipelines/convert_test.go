package pipelines

import (
	"errors"
	"math"
	"math/big"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func number(s string) Value { return numberOf([]byte(s)) }

func TestToInt(t *testing.T) {
	for _, c := range []struct {
		v    Value
		bits int
		want int64
		err  error
	}{
		{Int(127), 8, 127, nil}, {Int(128), 8, 0, ErrRange}, {Int(-128), 8, -128, nil}, {Int(-129), 8, 0, ErrRange},
		{Int(1 << 40), 32, 0, ErrRange}, {Int(math.MinInt64), 64, math.MinInt64, nil}, {Uint(1 << 63), 64, 0, ErrRange},
		{number("1.0"), 8, 1, nil}, {number("1.5"), 8, 0, ErrType}, {number("1.5e1"), 8, 15, nil}, {number("-0"), 8, 0, nil},
		{number("9007199254740993.0"), 64, 9007199254740993, nil}, {number("-9223372036854775808.00"), 64, math.MinInt64, nil},
		{number("9223372036854775808"), 64, 0, ErrRange}, {number("1e400"), 64, 0, ErrRange}, {number("1e99999999999999999999"), 64, 0, ErrRange},
		{number("0e99999999999999999999"), 64, 0, nil}, {number("1e-1"), 64, 0, ErrType}, {number("123456789012345678901234567890"), 64, 0, ErrRange},
		{Float(3), 8, 3, nil}, {Float(3.5), 8, 0, ErrType}, {Float(math.NaN()), 8, 0, ErrType}, {Float(math.Inf(1)), 64, 0, ErrRange}, {Float(1e19), 64, 0, ErrRange},
		{StringOf("12"), 8, 12, nil}, {StringOf("12 "), 8, 0, ErrType}, {StringOf(""), 8, 0, ErrType}, {StringOf("0x1"), 8, 0, ErrType}, {StringOf("-7"), 8, -7, nil},
		{Bool(true), 8, 1, nil}, {Null(), 8, 0, ErrNull}, {Time(time.Now()), 64, 0, ErrType}, {Value{kind: KindList, text: []byte("[]")}, 64, 0, ErrType},
	} {
		got, err := c.v.ToInt(c.bits)
		if got != c.want || !errors.Is(err, c.err) || (err == nil) != (c.err == nil) {
			t.Errorf("%s to int%d: %d, %v; want %d, %v", c.v.AppendJSON(nil), c.bits, got, err, c.want, c.err)
		}
	}
}

func TestToUint(t *testing.T) {
	for _, c := range []struct {
		v    Value
		bits int
		want uint64
		err  error
	}{
		{Int(255), 8, 255, nil}, {Int(300), 8, 0, ErrRange}, {Int(-1), 32, 0, ErrRange}, {Uint(math.MaxUint64), 64, math.MaxUint64, nil},
		{number("18446744073709551616"), 64, 0, ErrRange}, {number("1.8446744073709551615e19"), 64, math.MaxUint64, nil}, {number("-0"), 8, 0, nil},
		{number("-1.0"), 8, 0, ErrRange}, {StringOf("65535"), 16, 65535, nil}, {StringOf("65536"), 16, 0, ErrRange}, {Null(), 8, 0, ErrNull},
	} {
		got, err := c.v.ToUint(c.bits)
		if got != c.want || !errors.Is(err, c.err) || (err == nil) != (c.err == nil) {
			t.Errorf("%s to uint%d: %d, %v; want %d, %v", c.v.AppendJSON(nil), c.bits, got, err, c.want, c.err)
		}
	}
}

// TestToIntExact compares the reading of numbers with exact arithmetic.
func TestToIntExact(t *testing.T) {
	text := rapid.StringMatching(`-?(0|[1-9][0-9]{0,22})(\.[0-9]{1,6})?([eE][+-]?[0-9]{1,2})?`)
	rapid.Check(t, func(t *rapid.T) {
		s := text.Draw(t, "number")
		exact, ok := new(big.Rat).SetString(s)
		if !ok {
			t.Skip()
		}
		got, err := number(s).ToInt64()
		switch {
		case !exact.IsInt():
			if !errors.Is(err, ErrType) {
				t.Fatalf("%s: %d, %v", s, got, err)
			}
		case !exact.Num().IsInt64():
			if !errors.Is(err, ErrRange) {
				t.Fatalf("%s: %d, %v", s, got, err)
			}
		case err != nil || got != exact.Num().Int64():
			t.Fatalf("%s: %d, %v", s, got, err)
		}
	})
}

func TestToFloatBoolTime(t *testing.T) {
	if _, err := number("1e400").ToFloat64(); !errors.Is(err, ErrRange) {
		t.Errorf("1e400: %v", err)
	}
	if _, err := number("1e39").ToFloat32(); !errors.Is(err, ErrRange) {
		t.Errorf("1e39 as float32: %v", err)
	}
	if _, err := Float(1e39).ToFloat32(); !errors.Is(err, ErrRange) {
		t.Errorf("1e39 as float32: %v", err)
	}
	if f, err := StringOf("1.5").ToFloat64(); f != 1.5 || err != nil {
		t.Errorf("1.5: %v, %v", f, err)
	}
	for v, want := range map[string]error{"true": nil, "0": nil, "2": ErrType, "yes": ErrType} {
		if _, err := StringOf(v).ToBool(); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", v, err, want)
		}
	}
	if _, err := Int(2).ToBool(); !errors.Is(err, ErrRange) {
		t.Errorf("2 as bool: %v", err)
	}
	for s, want := range map[string]error{
		"2026-11-30T10:00:00Z": nil, "2026-11-30 10:00:00.123+01:00": nil, "2026-11-30T10:00:00": ErrType, "2026-02-30T10:00:00Z": ErrType,
		"2026-11-30T10:00:00+24:00": ErrType, "": ErrType, "2026-11-30T10:00:00.Z": ErrType, "0000-01-01T00:00:00Z": ErrRange, "2026-11-30T10:00:60Z": ErrType,
	} {
		if got, err := StringOf(s).ToTime(); !errors.Is(err, want) || (err == nil) != (want == nil) {
			t.Errorf("%q: %v, %v, want %v", s, got, err, want)
		}
	}
	if got, err := Int(0).ToTime(); err != nil || !got.Equal(time.Unix(0, 0)) {
		t.Errorf("0 as time: %v, %v", got, err)
	}
	for _, v := range []Value{Int(1_700_000_000_000), Uint(1 << 63), Float(1e20), Float(math.NaN())} {
		if _, err := v.ToTime(); !errors.Is(err, ErrRange) {
			t.Errorf("%s as time: %v", v.AppendJSON(nil), err)
		}
	}
}

func TestConversionErrorText(t *testing.T) {
	_, err := Int(300).ToUint(8)
	if want := `integer "300" cannot be uint8: out of range`; err.Error() != want {
		t.Errorf("got %s, want %s", err, want)
	}
	_, err = StringOf(strings.Repeat("x", 1000)).ToTime()
	var c *ConversionError
	if !errors.As(err, &c) || len(c.Value) != convertedTextMax {
		t.Errorf("the error holds the whole value: %v", err)
	}
}
