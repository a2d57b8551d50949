package pipelines

import (
	"fmt"
	"maps"
	"slices"

	"github.com/expr-lang/expr"
	"github.com/expr-lang/expr/builtin"
)

// language is the expression language as pipelines have it. What would not
// give the same for the same record is left out (the clock) or replaced (the
// functions that list a map in Go's random order).
func language(names *nameVisitor) []expr.Option {
	return []expr.Option{
		expr.Env(map[string]any{}),
		expr.AllowUndefinedVariables(),
		expr.MaxNodes(expressionNodesMax),
		expr.Patch(names),
		expr.DisableBuiltin("now"),
		expr.Function("keys", orderedFunction("keys", func(k string, _ any) any { return k })),
		expr.Function("values", orderedFunction("values", func(_ string, v any) any { return v })),
		expr.Function("toPairs", orderedFunction("toPairs", func(k string, v any) any { return []any{k, v} })),
	}
}

// orderedFunctions are the functions of ours that take a map.
var orderedFunctions = [...]string{"keys", "values", "toPairs"}

// orderedFunction lists what pick makes of each entry of a map, in the order of the keys.
func orderedFunction(name string, pick func(k string, v any) any) func(...any) (any, error) {
	return func(args ...any) (any, error) {
		if len(args) != 1 {
			return nil, fmt.Errorf("%s takes one object, not %d", name, len(args))
		}
		m, ok := args[0].(map[string]any)
		if !ok {
			return nil, fmt.Errorf("%s takes an object", name)
		}
		out := make([]any, 0, len(m))
		for _, k := range slices.Sorted(maps.Keys(m)) {
			out = append(out, pick(k, m[k]))
		}
		return out, nil
	}
}

// functionNames are the functions that expressions have.
func functionNames() []string {
	names := slices.Clone(builtin.Names)
	return slices.DeleteFunc(names, func(n string) bool { return n == "now" })
}
