package document

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"

	"github.com/projectcalico/api/pkg/lib/numorstring"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// misfit is a value in a document that is not of the type of its field.
type misfit struct {
	path   []string
	reason string
}

// misfits finds all values in the JSON of an object that do not fit its Go type. It returns the JSON with null in their
// places, for the checks of the rest. A number or a boolean fits where text is wanted: "zone: 1".
func misfits(text json.RawMessage, t reflect.Type, path []string) (rest json.RawMessage, list []misfit) {
	text = bytes.TrimSpace(text)
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if json.Unmarshal(text, reflect.New(t).Interface()) == nil {
		return text, nil
	}
	own := reflect.PointerTo(t).Implements(reflect.TypeFor[json.Unmarshaler]())
	switch {
	case own:
	case t.Kind() == reflect.Struct || t.Kind() == reflect.Map:
		var parts map[string]json.RawMessage
		if json.Unmarshal(text, &parts) != nil {
			break
		}
		for _, name := range slices.Sorted(maps.Keys(parts)) {
			if of := partType(t, name); of != nil {
				var found []misfit
				parts[name], found = misfits(parts[name], of, append(slices.Clone(path), name))
				list = append(list, found...)
			}
		}
		rest, _ = json.Marshal(parts) //nolint:errcheck // it was JSON
		return rest, list
	case t.Kind() == reflect.Slice:
		var parts []json.RawMessage
		if json.Unmarshal(text, &parts) != nil {
			break
		}
		for i := range parts {
			var found []misfit
			parts[i], found = misfits(parts[i], t.Elem(), append(slices.Clone(path), fmt.Sprint(i)))
			list = append(list, found...)
		}
		rest, _ = json.Marshal(parts) //nolint:errcheck // it was JSON
		return rest, list
	case t.Kind() == reflect.String && strings.Contains("-0123456789tf", string(text[:1])):
		return fmt.Appendf(nil, "%q", text), nil
	}
	value := fmt.Sprintf(" = %.80s", text)
	if !own && t.Kind() == reflect.Struct {
		value = "" // it may be a password where the name of a Secret is wanted
	}
	return json.RawMessage("null"), []misfit{{path, fieldPath(path) + value + ": must be " + wanted(t)}}
}

// partType returns the type of a field of a struct, of an embedded struct, or of the values of a map; nil for none.
func partType(t reflect.Type, name string) reflect.Type {
	if t.Kind() == reflect.Map {
		return t.Elem()
	}
	for i := range t.NumField() {
		f := t.Field(i)
		tag, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if tag == name {
			return f.Type
		}
		if f.Anonymous && (tag == "" || strings.Contains(options, "inline")) && f.Type.Kind() == reflect.Struct {
			if found := partType(f.Type, name); found != nil {
				return found
			}
		}
	}
	return nil
}

// fieldPath is the reverse of splitField.
func fieldPath(path []string) string {
	text := ""
	for _, p := range path {
		switch {
		case strings.Trim(p, "0123456789") == "":
			text += "[" + p + "]"
		case strings.ContainsAny(p, "./"):
			text += fmt.Sprintf("[%q]", p)
		default:
			text += "." + p
		}
	}
	return strings.TrimPrefix(text, ".")
}

// wanted says what a value of a type has to be.
func wanted(t reflect.Type) string {
	switch t {
	case reflect.TypeFor[numorstring.Port]():
		return "a port from 0 to 65535, a range like 80:90 from the lower to the higher, or a port's name"
	case reflect.TypeFor[numorstring.ASNumber]():
		return "an AS number: 0 to 4294967295, or two numbers to 65535 like 1.10"
	case reflect.TypeFor[numorstring.Protocol]():
		return "a protocol: a name like TCP, or a number from 1 to 255"
	case reflect.TypeFor[metav1.Duration]():
		return "a duration like 90s"
	case reflect.TypeFor[metav1.Time]():
		return "a time like 2006-01-02T15:04:05Z"
	}
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		return "text"
	case reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64, reflect.Int:
		most := int64(math.MaxInt64) >> (64 - t.Bits())
		return fmt.Sprintf("a whole number from %d to %d", -most-1, most)
	case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uint:
		return fmt.Sprintf("a whole number from 0 to %d", uint64(math.MaxUint64)>>(64-t.Bits()))
	case reflect.Float32, reflect.Float64:
		return "a number"
	case reflect.Slice:
		if t.Elem().Kind() == reflect.String {
			return "a list of texts"
		}
		return "a list"
	case reflect.Struct, reflect.Map:
		return "an object with fields"
	}
	return "of another form"
}
