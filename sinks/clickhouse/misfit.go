package clickhouse

import (
	"errors"
	"math"
	"math/big"
	"strings"
	"time"

	"github.com/sluice-io/sluice/pipelines"
)

// A value that its column cannot hold makes its record a dead letter, unless the pipeline's `misfit` has another way out. What is stored in its place
// depends on the record alone, and the column's name goes into _marks, if the table has that.

// bounds are the least and the largest value of a type.
type bounds struct{ lo, hi pipelines.Value }

// replacement is what is stored in the place of a value that its column refused.
func (b *block) replacement(f *field, v pipelines.Value, refused error, e *pipelines.Event) (pipelines.Value, bool) {
	m := b.misfit
	switch {
	case f.isTime && m.Time == pipelines.MisfitRecordTime && (errors.Is(refused, pipelines.ErrNull) || errors.Is(refused, pipelines.ErrType)):
		return pipelines.Time(e.Meta.Time), true
	case errors.Is(refused, pipelines.ErrRange) && m.Range == pipelines.MisfitNull && f.nullable:
		return pipelines.Null(), true
	case errors.Is(refused, pipelines.ErrRange) && m.Range == pipelines.MisfitClamp:
		return clamp(v, f.scalar)
	}
	return v, false
}

// mend stores something else in the place of a value that the column refused, or says that nothing can be.
func (b *block) mend(f *field, v pipelines.Value, refused error, e *pipelines.Event) error {
	f.undo()
	if errors.Is(refused, pipelines.ErrNull) && b.misfit.Null == pipelines.MisfitZero && v.IsNull() {
		if z, ok := f.column.(interface{ addZero() bool }); ok && z.addZero() {
			b.marks = append(b.marks, f.name)
			return nil
		}
	}
	other, ok := b.replacement(f, v, refused, e)
	if !ok || f.column.add(other) != nil {
		return refused
	}
	b.marks = append(b.marks, f.name)
	return nil
}

// addZero adds what a type has for nothing; false where it has no such value.
func (c *leaf) addZero() bool {
	if c.zero == nil {
		return false
	}
	c.addRaw(c.zero)
	return true
}

func (c *array) addZero() bool   { c.offsets.add(c.of.rows()); return true }
func (c *mapping) addZero() bool { c.offsets.add(c.keys.rows()); return true }

// clamp is the bound that a value lies beyond; false when it lies beyond none, so that something else is wrong with it.
func clamp(v pipelines.Value, t chType) (pipelines.Value, bool) {
	if t.name == "FixedString" {
		n, err := t.lengthArg(0, fixedStringMax)
		text := v.AppendText(nil)
		return pipelines.String(text[:min(n, len(text))]), err == nil
	}
	b, ok := boundsOf(t)
	if !ok {
		return v, false
	}
	if b.lo.Kind() == pipelines.KindTime {
		lo, _ := b.lo.ToTime()
		hi, _ := b.hi.ToTime()
		at, err := dateOf(v)
		switch {
		case err != nil:
			return v, false
		case at.Before(lo):
			return b.lo, true
		default:
			return b.hi, at.After(hi)
		}
	}
	x, ok := bigNumber(v)
	lo, _ := bigNumber(b.lo)
	hi, _ := bigNumber(b.hi)
	switch {
	case !ok || lo == nil || hi == nil:
		return v, false
	case x.Cmp(lo) < 0:
		return b.lo, true
	default:
		return b.hi, x.Cmp(hi) > 0
	}
}

// bigExponentMax bounds the numbers that are compared: 1e9999999 would take the memory of all.
const bigExponentMax = 5000

func bigNumber(v pipelines.Value) (*big.Float, bool) {
	text := string(v.AppendText(nil))
	if _, exponent, ok := strings.Cut(strings.ToLower(text), "e"); ok && len(strings.TrimLeft(exponent, "+-0")) > len("9999") {
		return nil, false
	}
	x, _, err := big.ParseFloat(text, 10, 512, big.ToNearestEven)
	if err != nil || x.MantExp(nil) > bigExponentMax*4 {
		return nil, false
	}
	return x, true
}

func boundsOf(t chType) (bounds, bool) {
	switch t.name {
	case "Int8", "Int16", "Int32", "Int64", "Int128", "Int256":
		half := new(big.Int).Lsh(big.NewInt(1), uint(intBits[t.name]-1))
		return bounds{pipelines.StringOf("-" + half.String()), pipelines.StringOf(new(big.Int).Sub(half, big.NewInt(1)).String())}, true
	case "UInt8", "UInt16", "UInt32", "UInt64", "UInt128", "UInt256":
		whole := new(big.Int).Lsh(big.NewInt(1), uint(intBits[t.name]))
		return bounds{pipelines.Int(0), pipelines.StringOf(new(big.Int).Sub(whole, big.NewInt(1)).String())}, true
	case "Float32":
		return bounds{pipelines.Float(-math.MaxFloat32), pipelines.Float(math.MaxFloat32)}, true
	case "Float64":
		return bounds{pipelines.Float(-math.MaxFloat64), pipelines.Float(math.MaxFloat64)}, true
	case "Decimal":
		return decimalBounds(t)
	case "Date":
		return timeBounds(epoch, dateMax), true
	case "Date32":
		return timeBounds(date32Min, date32Max), true
	case "DateTime":
		return timeBounds(epoch, dateTimeMax), true
	case "DateTime64":
		if precision, err := t.intArg(0); err == nil && precision >= 9 {
			return timeBounds(date32Min, nanosecondMax), true
		}
		return timeBounds(date32Min, date32Max), true
	}
	return bounds{}, false
}

func timeBounds(lo, hi time.Time) bounds {
	return bounds{pipelines.Time(lo.UTC()), pipelines.Time(hi.UTC())}
}

func decimalBounds(t chType) (bounds, bool) {
	precision, err := t.lengthArg(0, decimalDigitsMax)
	scale, err2 := t.lengthArg(1, precision)
	if err != nil || err2 != nil {
		return bounds{}, false
	}
	digits := strings.Repeat("9", precision)
	most := digits[:precision-scale]
	if scale > 0 {
		most += "." + digits[precision-scale:]
	}
	if strings.HasPrefix(most, ".") {
		most = "0" + most
	}
	return bounds{pipelines.StringOf("-" + most), pipelines.StringOf(most)}, true
}
