package model

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
)

// merge carries a change over to what is stored, so that all that is not understood survives.
//
// raw is the stored document, base is how this version would write what it understood of raw, and next is what is to
// be stored now. What is equal in base and next was not changed, so raw has its best form. What is in raw but not in
// base is unknown to this version. What is in base but not in next was removed on purpose.
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
			// Not stored, and not changed: our types print some empty fields that Calico leaves out.
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

// spelledOtherwise tells whether m has name in other letter case: Go reads such a field, so it is known.
func spelledOtherwise(name string, m map[string]any) bool {
	for k := range m {
		if len(k) == len(name) && strings.EqualFold(k, name) {
			return true
		}
	}
	return false
}

// holdsMaps tells a list of objects from a list of plain values, which cannot hold anything unknown.
func holdsMaps(list []any) bool {
	if len(list) == 0 {
		return false
	}
	_, ok := list[0].(map[string]any)
	return ok
}

// mergeLists takes elements that did not change from raw, wherever they stand now. An element that changed in its
// place is merged; a new one stays as it is, so that it does not inherit from the one that it displaced.
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
		case len(next) == len(base) && !used[i] && sameThing(base[i], n):
			result[i] = merge(raw[i], base[i], n)
		default:
			result[i] = n
		}
	}
	return result
}

// identities are the members that tell elements of a list apart.
var identities = []string{"handle_id", "name", "cidr", "address", "nodeName", "internalIP"}

// sameThing tells whether two different elements of a list can be two states of one thing: they have the same
// identity or, for elements without one, something in common.
func sameThing(a, b any) bool {
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

// decodeExact keeps numbers as they are written: sequence numbers exceed what a float64 holds.
func decodeExact(b []byte) (any, error) {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	var v any
	err := d.Decode(&v)
	return v, err
}
