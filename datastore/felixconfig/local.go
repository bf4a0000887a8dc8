package felixconfig

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/manxnet/manx/datastore/model"
)

// DefaultFile is the path of Felix's configuration file.
const DefaultFile = "/etc/calico/felix.cfg"

// Local are the settings of one host: Felix's parameters in its environment, and in its configuration file. They come
// before all FelixConfigurations, and the environment before the file. The zero value, and nil, set nothing.
type Local struct {
	Values []Value // in the order of their names
	// Problems are lines of the file that cannot be read.
	Problems []string
	// Spec has what the values set. Pointers in it are never changed.
	Spec    model.FelixConfigurationSpec
	emptied [][]int // indexes of the fields that are set to nothing
}

// Value is a parameter that this host sets.
type Value struct {
	Parameter Parameter // only with Name if Felix has no such parameter
	Source    string    // such as "FELIX_BPFENABLED in the environment", or "BPFEnabled in /etc/calico/felix.cfg"
	Text      string
	// Err is the rule that the text breaks: it sets nothing then.
	Err error
}

// NewLocal reads the variables FELIX_* of an environment, a list of NAME=VALUE, and the content of the file at path. A
// variable or key without a value sets nothing.
func NewLocal(environment []string, path, file string) *Local {
	l := &Local{}
	texts := map[string]Value{} // by the name in lower case
	add := func(name, text, source string) {
		v := Value{Parameter: Parameter{Name: name}, Source: source, Text: text}
		if p, ok := parametersByName()[strings.ToLower(name)]; ok {
			v.Parameter = p
		}
		if text != "" {
			texts[strings.ToLower(name)] = v
		}
	}
	keys, problems := readFile(path, file)
	l.Problems = problems
	for _, k := range keys {
		add(k[0], k[1], k[0]+" in "+path)
	}
	for _, e := range environment {
		variable, text, _ := strings.Cut(e, "=")
		if len(variable) > len(variablePrefix) && strings.EqualFold(variable[:len(variablePrefix)], variablePrefix) {
			add(variable[len(variablePrefix):], text, variable+" in the environment")
		}
	}
	for _, v := range texts {
		l.take(v)
	}
	slices.SortFunc(l.Values, func(a, b Value) int { return strings.Compare(a.Parameter.Name, b.Parameter.Name) })
	return l
}

// take sets the field of a value, if it has one and the value is valid.
func (l *Local) take(v Value) {
	if p := v.Parameter; p.index != nil {
		field := reflect.ValueOf(&l.Spec).Elem().FieldByIndex(p.index)
		value, err := p.value(v.Text, field.Type())
		switch {
		case err != nil:
			v.Err = err
		case value.IsValid() && value.IsZero():
			l.emptied = append(l.emptied, p.index)
		case value.IsValid():
			field.Set(value)
		}
	}
	l.Values = append(l.Values, v)
}

// over puts the settings of this host over merged ones.
func (l *Local) over(merged *model.FelixConfigurationSpec) {
	if l == nil {
		return
	}
	v := reflect.ValueOf(merged).Elem()
	for _, index := range l.emptied {
		v.FieldByIndex(index).SetZero()
	}
	overlay(v, reflect.ValueOf(&l.Spec).Elem())
}

// readFile reads lines KEY = VALUE, or KEY: VALUE; sections have no meaning, and a comment begins with # or ;. It
// returns the keys with their values, and the lines that are something else.
func readFile(path, text string) (keys [][2]string, problems []string) {
	number := 0
	for line := range strings.Lines(text) {
		number++
		line = strings.TrimSpace(line)
		for _, comment := range []string{" #", " ;"} {
			line, _, _ = strings.Cut(line, comment)
		}
		if line == "" || strings.ContainsAny(line[:1], "#;[") {
			continue
		}
		at := strings.IndexAny(line, "=:")
		if at <= 0 {
			problems = append(problems, fmt.Sprintf("%s, line %d: want KEY = VALUE", path, number))
			continue
		}
		value := strings.TrimSpace(line[at+1:])
		if n := len(value); n > 1 && (value[0] == '"' || value[0] == '\'') && value[n-1] == value[0] {
			value = value[1 : n-1]
		}
		keys = append(keys, [2]string{strings.TrimSpace(line[:at]), value})
	}
	return keys, problems
}
