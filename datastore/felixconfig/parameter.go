package felixconfig

import (
	_ "embed"
	"reflect"
	"strings"
	"sync"

	"github.com/manxnet/manx/datastore/model"
)

// Parameter is a setting that Felix reads from its environment and its configuration file.
type Parameter struct {
	Name    string // such as BPFEnabled; case does not matter in the two sources
	Default string // of Felix; empty: none
	// Field is the name in the spec of FelixConfiguration, such as bpfEnabled; empty for a parameter that has none.
	Field string
	kind  string
	index []int // of the field in model.FelixConfigurationSpec
}

// Variable returns the parameter's name in the environment.
func (p Parameter) Variable() string { return variablePrefix + strings.ToUpper(p.Name) }

const variablePrefix = "FELIX_"

// parametersText has a line for each parameter of Calico v3.32, and for those of earlier releases that manifests still
// set: its name, type and default, separated by tabs.
//
//go:embed parameters.txt
var parametersText string

// Parameters returns all parameters, by name. Callers must not change the list.
var Parameters = sync.OnceValue(func() []Parameter {
	fields := map[string]reflect.StructField{}
	eachField(reflect.TypeFor[model.FelixConfigurationSpec](), nil, func(f reflect.StructField) {
		name := f.Tag.Get("confignamev1") // which the API module's type has where the names differ
		if name == "" {
			name = f.Name
		}
		fields[strings.ToLower(name)] = f
	})
	var list []Parameter
	for line := range strings.Lines(parametersText) {
		part := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		p := Parameter{Name: part[0], kind: part[1]}
		if len(part) > 2 {
			p.Default = part[2]
		}
		if f, ok := fields[strings.ToLower(p.Name)]; ok {
			p.Field, p.index = jsonName(f), f.Index
		}
		list = append(list, p)
	}
	return list
})

var parametersByName = sync.OnceValue(func() map[string]Parameter {
	m := map[string]Parameter{}
	for _, p := range Parameters() {
		m[strings.ToLower(p.Name)] = p
	}
	return m
})

// eachField visits the fields of a struct type, also those of embedded types, with their indexes from the outer type.
func eachField(t reflect.Type, at []int, visit func(reflect.StructField)) {
	for i := range t.NumField() {
		f := t.Field(i)
		f.Index = append(append([]int(nil), at...), i)
		if f.Anonymous {
			eachField(f.Type, f.Index, visit)
			continue
		}
		visit(f)
	}
}

func jsonName(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return name
}
