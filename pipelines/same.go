package pipelines

import "reflect"

// SameCollecting says that q has the agent do the same as p: its sinks, tests and places in the file do not matter.
func (p *Pipeline) SameCollecting(q *Pipeline) bool {
	part := func(p *Pipeline) any {
		return []any{p.Name, p.Brokers, p.Collect, p.Process, p.Topic, p.Errors}
	}
	return sameButPlaces(reflect.ValueOf(part(p)), reflect.ValueOf(part(q)))
}

// SameStoring says that the sink of p stores the same, in the same way, as that of q: other sinks, inputs, tests and places in the file do not matter.
func (p *Pipeline) SameStoring(sink *SinkSpec, q *Pipeline, other *SinkSpec) bool {
	part := func(p *Pipeline, s *SinkSpec) any {
		return []any{p.Name, p.Brokers, p.Collect == nil, p.Process, p.Topic, p.Errors, s}
	}
	return sameButPlaces(reflect.ValueOf(part(p, sink)), reflect.ValueOf(part(q, other)))
}

var placeType = reflect.TypeFor[Pos]()

// sameButPlaces compares values deeply, but for places in files and for functions, which only find such places.
func sameButPlaces(a, b reflect.Value) bool {
	if a.IsValid() != b.IsValid() || a.IsValid() && a.Type() != b.Type() {
		return false
	}
	if !a.IsValid() || a.Type() == placeType {
		return true
	}
	switch a.Kind() {
	case reflect.Func:
		return a.IsNil() == b.IsNil()
	case reflect.Pointer, reflect.Interface:
		return a.IsNil() == b.IsNil() && (a.IsNil() || sameButPlaces(a.Elem(), b.Elem()))
	case reflect.Struct:
		for i := range a.NumField() {
			if !sameButPlaces(a.Field(i), b.Field(i)) {
				return false
			}
		}
		return true
	case reflect.Slice, reflect.Array:
		if a.Len() != b.Len() {
			return false
		}
		for i := range a.Len() {
			if !sameButPlaces(a.Index(i), b.Index(i)) {
				return false
			}
		}
		return true
	case reflect.Map:
		return sameMaps(a, b)
	}
	return a.Equal(b)
}

func sameMaps(a, b reflect.Value) bool {
	if a.Len() != b.Len() {
		return false
	}
	for _, k := range a.MapKeys() {
		if y := b.MapIndex(k); !y.IsValid() || !sameButPlaces(a.MapIndex(k), y) {
			return false
		}
	}
	return true
}
