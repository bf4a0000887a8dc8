package settings

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/manxnet/manx/datastore/felixconfig"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/datastore/userinfo"
)

// Finding is a setting that is set.
type Finding struct {
	Row
	Source string // such as "FelixConfiguration/default", "FELIX_BPFENABLED in the environment" or "IPPool/pods"
	Field  string // of the object, such as "spec.bpfEnabled"; empty if it is in none
	Value  string
}

// Matters reports whether the setting asks for something that Manx does not do.
func (f Finding) Matters() bool {
	return f.State >= Planned && !slices.ContainsFunc(f.harmless, func(v string) bool { return same(f.Value, v) })
}

// Danger reports whether the setting keeps the node from becoming ready unless it is accepted.
func (f Finding) Danger() bool { return f.Holds && f.Matters() }

// Answer is what Manx does with the value.
func (f Finding) Answer() string {
	if f.State >= Planned && !f.Matters() {
		return "no effect: Manx does the same without it"
	}
	return f.Row.Answer()
}

// Answer is what Manx does with the setting.
func (r Row) Answer() string {
	if r.Text == "" {
		return r.State.String()
	}
	return r.State.String() + ": " + r.Text
}

// Input are the places where the settings of a node can be.
type Input struct {
	Reader model.Reader // the datastore; nil: not known
	Node   string
	Local  *felixconfig.Local // nil: none
	Getenv func(string) string
	// Unread are kinds of Kubernetes of which the cluster has objects that Manx does not read.
	Unread []string
	// IPVS is set if kube-proxy of this host uses IPVS.
	IPVS bool
	// PolicyOnly is set if another program makes the network of this host's pods.
	PolicyOnly bool
}

// Here returns the settings of a node that are set: those of Felix by name, then those of BGPConfigurations, pools, the
// environment, and the host.
func Here(in Input) (list []Finding) {
	list = append(list, ofFelix(in)...)
	if r, ok := Find(ofHost, "wireguard-without-networking"); ok && in.PolicyOnly {
		if i := slices.IndexFunc(list, encrypts); i >= 0 {
			list = append(list, Finding{Row: r, Source: list[i].Source, Value: list[i].Name + "=true"})
		}
	}
	if in.Reader != nil {
		for _, kind := range []model.Kind{model.KindBGPConfiguration, model.KindIPPool} {
			for o := range in.Reader.All(kind) {
				if o.Err == nil && felixconfig.Concerns(o.Key.Name, in.Node) {
					list = append(list, OfObject(o)...)
				}
			}
		}
	}
	for _, r := range Rows() {
		if r.Place == Environment && in.Getenv != nil && in.Getenv(r.Name) != "" {
			list = append(list, Finding{Row: r, Source: r.Name + " in the environment",
				Value: withoutSecrets(r.Name, in.Getenv(r.Name))})
		}
	}
	for _, kind := range in.Unread {
		if r, ok := Find(Kind, kind); ok {
			list = append(list, Finding{Row: r, Source: "Kubernetes", Value: "in use"})
		}
	}
	if r, ok := Find(ofHost, "kube-proxy-ipvs"); ok && in.IPVS {
		list = append(list, Finding{Row: r, Source: "the interface " + IPVSInterface, Value: "in use"})
	}
	return list
}

// encrypts reports whether a setting switches WireGuard on.
func encrypts(f Finding) bool {
	return (f.Name == "wireguardEnabled" || f.Name == "wireguardEnabledV6") && same(f.Value, "true")
}

// IPVSInterface is the interface to which kube-proxy in mode IPVS gives the addresses of Services.
const IPVSInterface = "kube-ipvs0"

// ofFelix returns the settings of Felix: of each the value that is in force, with its source.
func ofFelix(in Input) []Finding {
	found := map[string]Finding{}
	if in.Reader != nil {
		for name, f := range felixconfig.Applicable(in.Reader, in.Node) {
			for _, x := range ofValue(f, "FelixConfiguration/"+name) {
				found[x.Name] = x
			}
		}
	}
	if in.Local != nil {
		for _, v := range in.Local.Values {
			found[ofLocal(v).Name] = ofLocal(v)
		}
	}
	return slices.SortedFunc(maps.Values(found), func(a, b Finding) int { return strings.Compare(a.Name, b.Name) })
}

// ofLocal returns the row of a parameter of this host. A value that is not used has a row of its own.
func ofLocal(v felixconfig.Value) Finding {
	name := v.Parameter.Field
	if name == "" {
		name = v.Parameter.Name
	}
	r, known := Find(ofFelixPlace, name)
	switch {
	case !known:
		r = Row{Place: ofFelixPlace, Name: name, State: NotDone, Text: "Felix has no such parameter"}
	case v.Err != nil:
		r = Row{Place: ofFelixPlace, Name: name + " (wrong value)", State: NotDone, Text: "the value is not used: " +
			v.Err.Error()}
	}
	value := withoutSecrets(name, v.Text)
	switch {
	case !known:
		value = hidden // nobody knows what it is
	case v.Err == nil && strings.EqualFold(v.Text, "none"):
		r.harmless = append(slices.Clone(r.harmless), v.Text) // Felix's word for no value
	}
	return Finding{Row: r, Source: v.Source, Value: value}
}

// hidden is shown in place of a secret.
const hidden = "(set)"

// withoutSecrets returns a value for people: notices and archives for support have it.
func withoutSecrets(name, value string) string {
	for _, word := range []string{"PASSWORD", "TOKEN", "SECRET"} {
		if strings.Contains(strings.ToUpper(name), word) {
			return hidden
		}
	}
	return string(userinfo.Hide([]byte(value)))
}

// OfObject returns the settings that an object sets.
func OfObject(o *model.Object) []Finding {
	return ofValue(o.Value, string(o.Key.Kind)+"/"+o.Key.Name)
}

func ofValue(value any, source string) (list []Finding) {
	walk(reflect.ValueOf(value), "", "", func(place, name, path string, v reflect.Value) {
		if r, ok := Find(place, name); ok {
			list = append(list, Finding{Row: r, Source: source, Field: path, Value: text(v)})
		}
	})
	return list
}

// walk visits the fields that have a value in an object of Calico's types, with the place of their rows and their paths
// from the object.
func walk(v reflect.Value, place, at string, visit func(place, name, path string, v reflect.Value)) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			walk(v.Elem(), place, at, visit)
		}
		return
	case reflect.Slice:
		for i := range v.Len() {
			walk(v.Index(i), "", fmt.Sprintf("%s[%d]", at, i), visit)
		}
		return
	case reflect.Struct:
	default:
		return
	}
	if !ours(v.Type()) {
		return
	}
	if place == "" {
		place = placeOf(v.Type())
	}
	for i := range v.NumField() {
		f, field := v.Type().Field(i), v.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		path := strings.TrimPrefix(at+"."+name, ".")
		switch {
		case f.Anonymous:
			walk(field, place, at, visit)
			continue
		case field.IsZero() || field.Kind() == reflect.Slice && field.Len() == 0 || name == "metadata":
			continue
		case name != "spec" && name != "status":
			visit(place, name, path, field)
		}
		walk(field, "", path, visit)
	}
}

// placeOf returns the place of the rows for the fields of a type.
func placeOf(t reflect.Type) string { return strings.TrimSuffix(t.Name(), "Spec") }

// ours reports whether a type is one of Calico's.
func ours(t reflect.Type) bool {
	return strings.Contains(t.PkgPath(), "projectcalico/api/pkg/apis/") ||
		t.PkgPath() == reflect.TypeFor[model.Node]().PkgPath()
}

// longest is the length of a value that is shown.
const longest = 60

// text returns the value of a field for people.
func text(v reflect.Value) string {
	if d, ok := v.Interface().(*metav1.Duration); ok {
		return d.Duration.String()
	}
	for v.Kind() == reflect.Pointer {
		v = v.Elem()
	}
	switch v.Kind() {
	case reflect.Struct, reflect.Slice, reflect.Map:
		raw, err := json.Marshal(v.Interface())
		if err != nil {
			return fmt.Sprint(v)
		}
		if len(raw) > longest {
			return string(raw[:longest]) + "..."
		}
		return string(raw)
	}
	return fmt.Sprint(v)
}

// same reports whether two texts are the same value: words in any case, numbers in any base, and a time in seconds as a
// number.
func same(a, b string) bool {
	if strings.EqualFold(a, b) {
		return true
	}
	if x, ok := truth[strings.ToLower(a)]; ok {
		if y, ok := truth[strings.ToLower(b)]; ok {
			return x == y
		}
	}
	x, okA := number(a)
	y, okB := number(b)
	return okA && okB && x == y
}

// truth are the words of Felix for true and false.
var truth = map[string]bool{"true": true, "1": true, "yes": true, "y": true, "t": true,
	"false": false, "0": false, "no": false, "n": false, "f": false}

func number(text string) (float64, bool) {
	if n, err := strconv.ParseInt(text, 0, 64); err == nil {
		return float64(n), true
	}
	var d metav1.Duration
	if d.UnmarshalJSON([]byte(strconv.Quote(text))) == nil {
		return d.Seconds(), true
	}
	f, err := strconv.ParseFloat(text, 64)
	return f, err == nil
}
