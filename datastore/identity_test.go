package datastore

import (
	"reflect"
	"testing"

	"github.com/manxnet/manx/datastore/model"
)

// TestIdentity changes each field that endpoints have in common, one after the other: the identity must depend on each.
func TestIdentity(t *testing.T) {
	var w model.WorkloadEndpoint
	fillIn(reflect.ValueOf(&w).Elem())
	w.Spec.Orchestrator = "k8s"
	o := model.NewObject(model.Key{Kind: model.KindWorkloadEndpoint, Namespace: "n", Name: "e"}, &w)
	var r reducer
	changes := 0
	o.Remote(new(model.CommonEndpoint), func(s string) string { return s },
		func(common *model.CommonEndpoint) *model.CommonEndpoint {
			want := string(r.identity(common))
			changeEach(reflect.ValueOf(common).Elem(), "", func(path string) {
				changes++
				if string(r.identity(common)) == want {
					t.Errorf("%s has no effect", path)
				}
			})
			if string(r.identity(common)) != want {
				t.Error("the test has not put back what it changed")
			}
			kept := *common
			return &kept
		})
	if changes < 12 {
		t.Errorf("only %d fields were changed", changes)
	}
}

// fillIn sets each field to a value.
func fillIn(v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		v.SetString("text")
	case reflect.Uint8, reflect.Uint16:
		v.SetUint(7)
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Field(i).CanSet() {
				fillIn(v.Field(i))
			}
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fillIn(v.Index(0))
	case reflect.Map:
		if v.Type().Elem().Kind() == reflect.String {
			v.Set(reflect.ValueOf(map[string]string{"name": "text"}))
		}
	}
}

// changeEach changes every set field, one after the other, and restores it.
func changeEach(v reflect.Value, path string, check func(path string)) {
	with := func(value reflect.Value) {
		was := reflect.New(v.Type()).Elem()
		was.Set(v)
		v.Set(value)
		check(path)
		v.Set(was)
	}
	switch v.Kind() {
	case reflect.String:
		if v.Len() > 0 {
			with(reflect.ValueOf(v.String() + "x").Convert(v.Type()))
		}
	case reflect.Uint8, reflect.Uint16:
		if v.Uint() > 0 {
			with(reflect.ValueOf(v.Uint() + 1).Convert(v.Type()))
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Field(i).CanSet() {
				changeEach(v.Field(i), path+"."+v.Type().Field(i).Name, check)
			}
		}
	case reflect.Slice:
		if v.Len() > 0 {
			changeEach(v.Index(0), path+"[0]", check)
			with(reflect.AppendSlice(v, v))
		}
	case reflect.Map:
		if v.Len() > 0 {
			with(reflect.ValueOf(map[string]string{"name": "other"}))
			with(reflect.ValueOf(map[string]string{"other": "text"}))
		}
	}
}
