package plan

import (
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/manxnet/manx/bgp"
)

// spoil makes a value of any type differ from its zero value.
func spoil(v reflect.Value) {
	switch v.Interface().(type) {
	case netip.Addr:
		v.Set(reflect.ValueOf(netip.MustParseAddr("10.9.9.9")))
		return
	case netip.Prefix:
		v.Set(reflect.ValueOf(netip.MustParsePrefix("10.9.9.0/24")))
		return
	case time.Duration:
		v.SetInt(7)
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString("x")
	case reflect.Bool:
		v.SetBool(!v.Bool())
	case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(v.Uint() + 1)
	case reflect.Int, reflect.Int64:
		v.SetInt(v.Int() + 1)
	case reflect.Slice:
		e := reflect.New(v.Type().Elem()).Elem()
		spoil(e)
		v.Set(reflect.Append(reflect.MakeSlice(v.Type(), 0, 1), e))
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Field(i).CanSet() {
				spoil(v.Field(i))
			}
		}
	case reflect.Array:
		for i := range v.Len() {
			spoil(v.Index(i))
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
	}
}

func sample() bgp.Desired {
	return bgp.Desired{
		Sessions:   []bgp.Session{{Address: netip.MustParseAddr("10.0.0.2"), PasswordFrom: "set"}},
		Conflicts:  []bgp.Conflict{{Address: netip.MustParseAddr("10.0.0.2")}},
		Originated: []bgp.Origin{{Prefix: netip.MustParsePrefix("10.1.0.0/26")}},
		Filters:    []bgp.Filter{{Name: "f", ExportV4: []bgp.Rule{{Name: "r"}}}},
	}
}

// TestNoDifferenceIsMissed changes each field that the daemon uses, also those that a plan does not show.
func TestNoDifferenceIsMissed(t *testing.T) {
	if d := Compare("n", sample(), sample()); !d.Empty() {
		t.Fatalf("equal states differ: %+v", d)
	}
	for _, part := range []struct {
		name   string
		of     func(*bgp.Desired) reflect.Value
		except []string
	}{
		{"Desired", func(d *bgp.Desired) reflect.Value { return reflect.ValueOf(d).Elem() }, []string{"Notices"}},
		{"Global", func(d *bgp.Desired) reflect.Value { return reflect.ValueOf(&d.Global).Elem() }, nil},
		{"Session", func(d *bgp.Desired) reflect.Value { return reflect.ValueOf(&d.Sessions[0]).Elem() }, nil},
		{"Conflict", func(d *bgp.Desired) reflect.Value { return reflect.ValueOf(&d.Conflicts[0]).Elem() }, nil},
		{"Origin", func(d *bgp.Desired) reflect.Value { return reflect.ValueOf(&d.Originated[0]).Elem() }, nil},
		{"Rule", func(d *bgp.Desired) reflect.Value { return reflect.ValueOf(&d.Filters[0].ExportV4[0]).Elem() },
			[]string{"Name"}},
	} {
		d := sample()
		names := part.of(&d).Type()
		for i := range names.NumField() {
			name := names.Field(i).Name
			if slices.Contains(part.except, name) {
				continue
			}
			changed := sample()
			spoil(part.of(&changed).Field(i))
			for _, diff := range []Diff{Compare("n", sample(), changed), Compare("n", changed, sample())} {
				var text strings.Builder
				if err := diff.WriteText(&text); err != nil || diff.Empty() || strings.Count(text.String(), "\n") < 2 {
					t.Errorf("a change of %s.%s goes unnoticed: %v\n%s", part.name, name, err, text.String())
				}
			}
		}
	}
}

// TestWhatResetsSessions compares with the daemon's rule for session resets.
func TestWhatResetsSessions(t *testing.T) {
	for _, c := range []struct {
		rule   string
		change func(*bgp.Desired)
		resets bool
	}{
		{"AS number", func(d *bgp.Desired) { d.Sessions[0].PeerAS = 9 }, true},
		{"another password", func(d *bgp.Desired) { d.Sessions[0].Password = "x" }, true},
		{"becomes a reflector client", func(d *bgp.Desired) { d.Sessions[0].ReflectorClient = true }, true},
		{"keepalive time", func(d *bgp.Desired) { d.Sessions[0].KeepaliveSeconds = 9 }, false},
		{"filters", func(d *bgp.Desired) { d.Sessions[0].Filters = []string{"f"} }, false},
		{"BFD", func(d *bgp.Desired) { d.Sessions[0].BFD.Enabled = true }, false},
		{"filters, but the speaker restarts", func(d *bgp.Desired) {
			d.Sessions[0].Filters, d.Global.LocalAS = []string{
				"f"}, 9
		}, true},
	} {
		to := sample()
		c.change(&to)
		got := Compare("n", sample(), to).Changed.Sessions
		if len(got) != 1 || got[0].Resets != c.resets || strings.HasPrefix(got[0].Effect, "resets") != c.resets {
			t.Errorf("%s: %+v, want resets %t", c.rule, got, c.resets)
		}
	}
}
