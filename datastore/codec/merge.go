package codec

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
)

// merge applies a change to the stored document, so that all unknown fields survive.
//
// raw is the stored document, base is this version's encoding of the fields it knows in raw, and next is the document
// to store now. Fields equal in base and next were not changed; they are taken from raw. Fields in raw but not in base
// are unknown to this version. Fields in base but not in next were removed on purpose.
func merge(raw, base, next any) any {
	if reflect.DeepEqual(base, next) {
		return raw
	}
	switch next := next.(type) {
	case map[string]any:
		r, ok1 := raw.(map[string]any)
		b, ok2 := base.(map[string]any)
		if ok1 && ok2 {
			return mergeMaps(r, b, next)
		}
	case []any:
		r, ok1 := raw.([]any)
		b, ok2 := base.([]any)
		if ok1 && ok2 && len(r) == len(b) && holdsMaps(b) {
			return mergeLists(r, b, next)
		}
	}
	return next
}

func mergeMaps(raw, base, next map[string]any) map[string]any {
	result := make(map[string]any, len(next))
	for name, n := range next {
		b, understood := base[name]
		r, stored := raw[name]
		switch {
		case understood && stored:
			result[name] = merge(r, b, n)
		case understood && reflect.DeepEqual(b, n) && !spelledOtherwise(name, raw):
			// Neither stored nor changed: our types print some empty fields that Calico leaves out.
		default:
			result[name] = n
		}
	}
	for name, r := range raw {
		_, understood := base[name]
		_, present := next[name]
		if !understood && !present && !spelledOtherwise(name, base) && !spelledOtherwise(name, next) {
			result[name] = r
		}
	}
	return result
}

// spelledOtherwise reports whether m has name in other letter case: Go decodes such a field, so it is known.
func spelledOtherwise(name string, m map[string]any) bool {
	for k := range m {
		if len(k) == len(name) && strings.EqualFold(k, name) {
			return true
		}
	}
	return false
}

// holdsMaps reports whether a list has objects, rather than plain values, which cannot have unknown fields.
func holdsMaps(list []any) bool {
	if len(list) == 0 {
		return false
	}
	_, ok := list[0].(map[string]any)
	return ok
}

// mergeLists takes unchanged elements from raw, wherever they stand now. An element that changed in its place is
// merged; a new one stays as it is, so that it inherits nothing from the one that it displaced.
func mergeLists(raw, base, next []any) []any {
	result := make([]any, len(next))
	from := make([]int, len(next)) // index in base, -1 for none
	used := make([]bool, len(base))
	start := 0
	for i, n := range next {
		from[i] = -1
		for j := start; j < len(base); j++ {
			if !used[j] && reflect.DeepEqual(base[j], n) {
				from[i], used[j] = j, true
				break
			}
		}
		for start < len(base) && used[start] {
			start++
		}
	}
	for i, n := range next {
		switch {
		case from[i] >= 0:
			result[i] = raw[from[i]]
		case len(next) == len(base) && !used[i] && sameElement(base[i], n):
			result[i] = merge(raw[i], base[i], n)
		default:
			result[i] = n
		}
	}
	return result
}

// identities are the members that identify a list's element.
var identities = []string{"handle_id", "name", "cidr", "address", "nodeName", "internalIP"}

// sameElement reports whether two different elements of a list can be two states of one thing: they have the same
// identity or, for elements without one, a common member.
func sameElement(a, b any) bool {
	am, ok1 := a.(map[string]any)
	bm, ok2 := b.(map[string]any)
	if !ok1 || !ok2 {
		return false
	}
	for _, id := range identities {
		av, inA := am[id]
		bv, inB := bm[id]
		if inA || inB {
			return inA && inB && reflect.DeepEqual(av, bv)
		}
	}
	for name, v := range am {
		if w, ok := bm[name]; ok && reflect.DeepEqual(v, w) {
			return true
		}
	}
	return false
}

// decodeExact keeps the text of numbers: sequence numbers exceed a float64's precision.
func decodeExact(b []byte) (any, error) {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	var v any
	err := d.Decode(&v)
	return v, err
}
