package felixconfig

import (
	"reflect"
	"testing"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"

	"github.com/manxnet/manx/datastore/model"
)

func felix(name string, spec model.FelixConfigurationSpec) *model.Object {
	return model.NewObject(model.ResourceKey(model.KindFelixConfiguration, name), &model.FelixConfiguration{Spec: spec})
}

// settings visits every field of a spec, also those of the embedded type.
func settings(spec reflect.Value, visit func(name string, f reflect.Value)) {
	for i := range spec.NumField() {
		if t := spec.Type().Field(i); t.Anonymous {
			settings(spec.Field(i), visit)
		} else {
			visit(t.Name, spec.Field(i))
		}
	}
}

// fill sets a field to a non-zero value; n makes two of them differ where the type allows it.
func fill(t *testing.T, name string, f reflect.Value, n int) {
	t.Helper()
	switch f.Kind() {
	case reflect.Pointer:
		f.Set(reflect.New(f.Type().Elem()))
	case reflect.String:
		f.SetString([]string{"a", "b"}[n])
	case reflect.Slice:
		f.Set(reflect.MakeSlice(f.Type(), n+1, n+1))
	case reflect.Map:
		f.Set(reflect.MakeMap(f.Type()))
		f.SetMapIndex(reflect.New(f.Type().Key()).Elem(), reflect.New(f.Type().Elem()).Elem())
	case reflect.Int:
		f.SetInt(int64(n + 1))
	default:
		t.Fatalf("%s has kind %s: does the merge do right by it?", name, f.Kind())
	}
}

// Every field is merged, also a field of a later version of the type.
func TestMergeTakesEveryField(t *testing.T) {
	special := map[string]bool{"FloatingIPs": true, "NodeSelector": true}
	count := 0
	settings(reflect.ValueOf(&model.FelixConfigurationSpec{}).Elem(), func(name string, _ reflect.Value) {
		if special[name] {
			return
		}
		count++
		var cluster, node model.FelixConfigurationSpec
		for n, s := range []*model.FelixConfigurationSpec{&cluster, &node} {
			settings(reflect.ValueOf(s).Elem(), func(other string, f reflect.Value) {
				if other == name {
					fill(t, name, f, n)
				}
			})
		}
		empty := model.FelixConfigurationSpec{}
		for _, c := range []struct {
			name               string
			cluster, node, all model.FelixConfigurationSpec
		}{
			{"of the cluster", cluster, empty, cluster},
			{"of the node", empty, node, node},
			{"of both", cluster, node, node},
		} {
			got := Merge(model.NewSet(felix("default", c.cluster), felix("node.n1", c.node),
				felix("node.n2", cluster)), "n1", nil)
			wanted := map[string]reflect.Value{}
			settings(reflect.ValueOf(&c.all).Elem(), func(other string, f reflect.Value) { wanted[other] = f })
			settings(reflect.ValueOf(&got).Elem(), func(other string, f reflect.Value) {
				if want := wanted[other]; f.Kind() == reflect.Pointer && f.Pointer() != want.Pointer() ||
					!reflect.DeepEqual(f.Interface(), want.Interface()) {
					t.Errorf("%s %s: %s is %v, want %v", name, c.name, other, f, want)
				}
			})
		}
	})
	if count < 150 {
		t.Errorf("only %d fields were seen", count)
	}
}

func TestMerge(t *testing.T) {
	no, yes := false, true
	enabled, disabled := v3.FloatingIPsEnabled, v3.FloatingIPsDisabled
	spec := func(set func(*model.FelixConfigurationSpec)) (s model.FelixConfigurationSpec) {
		set(&s)
		return s
	}
	r := model.NewSet(
		felix("default", spec(func(s *model.FelixConfigurationSpec) {
			s.IPIPEnabled, s.InterfacePrefix, s.FloatingIPs, s.LogPrefix = &yes, "cali", &enabled, "cluster"
		})),
		felix("rack", spec(func(s *model.FelixConfigurationSpec) {
			s.NodeSelector, s.InterfacePrefix, s.LogPrefix, s.FloatingIPs = "all()", "tap", "rack", &disabled
		})),
		felix("node.n1", spec(func(s *model.FelixConfigurationSpec) { s.IPIPEnabled, s.LogPrefix = &no, "own" })),
	)
	got := Merge(r, "n1", nil)
	if *got.IPIPEnabled || got.InterfacePrefix != "tap" || got.LogPrefix != "own" || *got.FloatingIPs != enabled ||
		got.NodeSelector != "" {
		t.Errorf("got %+v", got)
	}
	if got = Merge(r, "n2", nil); !*got.IPIPEnabled || got.LogPrefix != "rack" {
		t.Errorf("of another node: %+v", got)
	}
	if got = Merge(model.NewSet(), "n1", nil); !reflect.DeepEqual(got, model.FelixConfigurationSpec{}) {
		t.Errorf("of nothing: %+v", got)
	}
}

func BenchmarkMerge(b *testing.B) {
	yes := true
	var s model.FelixConfigurationSpec
	s.IPIPEnabled, s.InterfacePrefix = &yes, "cali"
	r := model.NewSet(felix("default", s), felix("node.n1", s))
	b.ReportAllocs()
	for b.Loop() {
		Merge(r, "n1", nil)
	}
}
