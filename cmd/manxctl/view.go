package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/manxnet/manx/datastore/table"
)

// view converts a message of the control API to the output of -o json and -o yaml: names in camel case, every field
// present, times as RFC 3339 text in UTC instead of the ..._unix_ms numbers (absent for "never"). The output is a
// stable API.
func view(m protoreflect.ProtoMessage) any { return viewMessage(m.ProtoReflect()) }

func viewMessage(m protoreflect.Message) any {
	out := fields{}
	fs := m.Descriptor().Fields()
	for i := range fs.Len() {
		f := fs.Get(i)
		if f.HasPresence() && !m.Has(f) {
			continue
		}
		name := f.JSONName()
		value := viewField(f, m.Get(f))
		if short, isTime := strings.CutSuffix(name, "UnixMs"); isTime {
			if m.Get(f).Int() == 0 {
				continue
			}
			name, value = short, time.UnixMilli(m.Get(f).Int()).UTC().Format(time.RFC3339)
		}
		out = append(out, field{name, value})
	}
	return out
}

func viewField(f protoreflect.FieldDescriptor, v protoreflect.Value) any {
	switch {
	case f.IsList():
		out := []any{}
		for i := range v.List().Len() {
			out = append(out, viewValue(v.List().Get(i)))
		}
		return out
	case f.IsMap():
		out := map[string]any{}
		v.Map().Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
			out[k.String()] = viewValue(v)
			return true
		})
		return out
	}
	return viewValue(v)
}

func viewValue(v protoreflect.Value) any {
	if m, ok := v.Interface().(protoreflect.Message); ok {
		return viewMessage(m)
	}
	return v.Interface()
}

// fields is a JSON object that keeps the order of the fields in the .proto file.
type fields []field

type field struct {
	name  string
	value any
}

// MarshalJSON implements json.Marshaler.
func (f fields) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, x := range f {
		if i > 0 {
			b.WriteByte(',')
		}
		name, err := json.Marshal(x.name)
		if err != nil {
			return nil, err
		}
		value, err := json.Marshal(x.value)
		if err != nil {
			return nil, err
		}
		b.Write(name)
		b.WriteByte(':')
		b.Write(value)
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// printStructured prints an answer as YAML or JSON.
func (c *cli) printStructured(f table.Format, m protoreflect.ProtoMessage) error {
	return table.Value(c.out, f, view(m))
}

// ago formats the time since, in units for people. 0 is never.
func ago(unixMs int64, now time.Time) string {
	if unixMs == 0 {
		return ""
	}
	return duration(now.Sub(time.UnixMilli(unixMs)))
}

func duration(d time.Duration) string {
	d = max(d, 0)
	switch {
	case d < 2*time.Minute:
		return d.Truncate(time.Second).String()
	case d < 2*time.Hour:
		return strings.TrimSuffix(d.Truncate(time.Minute).String(), "0s")
	case d < 48*time.Hour:
		return strings.TrimSuffix(d.Truncate(time.Hour).String(), "0m0s")
	}
	return itoa(int(d.Hours()/24)) + "d"
}
