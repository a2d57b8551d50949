package clickhouse

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseType(t *testing.T) {
	for in, want := range map[string]chType{
		"String":                         {name: "String"},
		"DateTime64(3, 'UTC')":           {name: "DateTime64", args: []string{"3", "'UTC'"}},
		"Array(Map(String, Array(Int)))": {name: "Array", args: []string{"Map(String, Array(Int))"}},
		`Enum8('a, b' = 1, 'c\')' = 2)`:  {name: "Enum8", args: []string{"'a, b' = 1", `'c\')' = 2`}},
	} {
		got, err := parseType(in)
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(chType{})); diff != "" || err != nil {
			t.Errorf("%s: %s %v", in, diff, err)
		}
	}
	for _, in := range []string{"Array(", "Array(String", "Enum8('a)"} {
		if got, err := parseType(in); err == nil {
			t.Errorf("%s: %+v", in, got)
		}
	}
}

func FuzzParseType(f *testing.F) {
	f.Add("Array(Map(String, Nullable(DateTime64(3, 'UTC'))))")
	f.Add(`Enum8('a' = 1, 'b\'' = -2)`)
	f.Add("Decimal(38, 10)")
	f.Fuzz(func(t *testing.T, s string) {
		c, err := newColumn(s)
		if err == nil && c.rows() != 0 {
			t.Errorf("%q has rows", s)
		}
	})
}
