package ruleset

import (
	"net/netip"
	"reflect"
	"testing"
)

// fullRule has a value in every field.
func fullRule() Rule {
	return Rule{
		Matches: []Match{
			{Field: Family, Low: 4},
			{Field: Source, Not: true, Name: "cali*", Prefix: netip.MustParsePrefix("10.0.0.0/8"), Set: "h4/x", Low: 1,
				High: 2, Mask: 3},
		},
		Over: Limit{Packets: 1, Burst: 2, Connections: 3}, Counter: true, CountedBy: "c",
		Log:  Log{Kernel: "k", Group: 1, Prefix: "p", Rate: 2, Burst: 3, Per: PerMinute},
		Mark: Mark{Value: 1, Mask: 2}, DSCP: DSCP{Set: true, Value: 46}, NoTrack: true,
		ClampMSS: true,
		Verdict: Verdict{Action: SNAT, Chain: "c", Map: "m", Out: true, Address: netip.MustParseAddr("192.0.2.1"),
			Low: 1, High: 2, Random: true},
		Comment: "NetworkPolicy/default/web ingress 1",
	}
}

// A later release must recognise the rules in current kernels.
func TestIDIsStableOverReleases(t *testing.T) {
	fifth := fullRule()
	fifth.ClampMSS = false
	fourth := fifth
	fourth.DSCP = DSCP{}
	third := fourth
	third.CountedBy = ""
	second := third
	second.Log.Kernel = ""
	first := second
	first.Log.Per = PerSecond
	tests := []struct {
		name string
		rule Rule
		id   string
	}{
		{"empty", Rule{}, "4oymiquy7qob"},
		{"accept", Rule{Verdict: Verdict{Action: Accept}}, "xcyey46z47rz"},
		{"typical", Rule{
			Matches: []Match{{Field: Family, Low: 6}, {Field: Protocol, Low: 6}, {Field: Destination, Set: "h6/abc"},
				{Field: DestinationPort, Low: 80, High: 90}},
			Counter: true, Verdict: Verdict{Action: Accept}, Comment: "NetworkPolicy/default/web ingress 1"},
			"4x3jsdno6kpc"},
		{"everything of the first release", first, "qewp3pehrecc"},
		{"everything of the second", second, "hcxo52uy46bk"},
		{"everything of the third", third, "l5rjdufzc4gt"},
		{"everything of the fourth", fourth, "put66b3yngn2"},
		{"everything of the fifth", fifth, "ku7qk7ajrydq"},
		{"everything", fullRule(), "43q4r4hw4oga"},
		{"the kernel's log", Rule{Log: Log{Kernel: "calico-packet: "}}, "cduxrcmo3u33"},
	}
	for _, test := range tests {
		if got := test.rule.ID(); got != test.id {
			t.Errorf("%s: ID %q, want %q", test.name, got, test.id)
		}
	}
}

// A change of a field that the ID leaves out would never reach the kernel.
func TestIDDependsOnEveryField(t *testing.T) {
	seen := map[string]string{}
	note := func(path string, r Rule) {
		id := r.ID()
		if len(id) != 12 {
			t.Errorf("%s: ID %q", path, id)
		}
		if other, ok := seen[id]; ok {
			t.Errorf("the ID is the same without %s and without %s", path, other)
		}
		seen[id] = path
	}
	full := fullRule()
	note("nothing", full)
	var zeroEach func(path string, v reflect.Value, rule *Rule)
	zeroEach = func(path string, v reflect.Value, rule *Rule) {
		switch v.Interface().(type) {
		case netip.Prefix, netip.Addr:
		default:
			switch v.Kind() {
			case reflect.Struct:
				for i := range v.NumField() {
					zeroEach(path+"."+v.Type().Field(i).Name, v.Field(i), rule)
				}
				return
			case reflect.Slice:
				for i := range v.Len() {
					zeroEach(path, v.Index(i), rule)
				}
				return
			}
		}
		if v.IsZero() {
			return // of the first match
		}
		old := reflect.ValueOf(v.Interface())
		v.SetZero()
		note(path, *rule)
		v.Set(old)
	}
	zeroEach("Rule", reflect.ValueOf(&full).Elem(), &full)
	if len(seen) < 29 {
		t.Errorf("only %d fields were tried", len(seen))
	}
	for i := range reflect.TypeFor[Match]().NumField() {
		if v := reflect.ValueOf(full.Matches[1]).Field(i); v.IsZero() {
			t.Errorf("fullRule has no %s in its match", reflect.TypeFor[Match]().Field(i).Name)
		}
	}
	swapped := fullRule()
	swapped.Matches[0], swapped.Matches[1] = swapped.Matches[1], swapped.Matches[0]
	note("the order of matches", swapped)
}
