package pipelines

// A destination that is given each value of millions of records asks first for the forms that most have. These do what ToInt and the others do, without
// copies of the value; ok is false where the value is of another kind or form, and those have to decide.

// UsualText is the bytes of a string, not a copy.
func (v *Value) UsualText() (text []byte, ok bool) { return v.text, v.kind == KindString }

// UsualInt is the value of a KindInt.
func (v *Value) UsualInt() (n int64, ok bool) { return int64(v.num), v.kind == KindInt }

// UsualTime is a time, or a string that is one, as Unix seconds and nanoseconds. Its years are 0 to 9999: ToTime refuses the year 0.
func (v *Value) UsualTime() (seconds, nsec int64, ok bool) {
	switch v.kind {
	case KindTime:
		return int64(v.num), int64(v.nsec), true
	case KindString:
		seconds, nsec, _, ok = parseMoment(v.text)
		return seconds, nsec, ok
	}
	return 0, 0, false
}

// UsualFloat is a number as ToFloat64 has it: an integer, or one that was written with few digits.
func (v *Value) UsualFloat() (f float64, ok bool) {
	switch {
	case v.kind == KindInt:
		return float64(int64(v.num)), true
	case v.kind == KindFloat && v.text != nil:
		return shortFloat(v.text)
	}
	return 0, false
}

// Both numbers of a quotient that is rounded once must be exact: below 2^53, and 10^22.
const shortFloatDigitsMax = 15

// powersOfTen has a place for each digit behind the point.
var powersOfTen = [shortFloatDigitsMax + 1]float64{1, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15}

// shortFloat reads 12.345: digits with a point between them.
func shortFloat(text []byte) (f float64, ok bool) {
	if len(text) > shortFloatDigitsMax+1 {
		return 0, false
	}
	n, point := uint64(0), -1
	for i, c := range text {
		switch {
		case c-'0' <= 9:
			n = n*10 + uint64(c-'0')
		case c == '.' && point < 0:
			point = i
		default:
			return 0, false
		}
	}
	if point <= 0 || point == len(text)-1 {
		return 0, false
	}
	return float64(n) / powersOfTen[len(text)-1-point], true
}
