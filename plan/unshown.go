package plan

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	"github.com/manxnet/manx/bgp"
)

// A plan does not show all settings of the daemon, but a difference must show every change. So the other fields are
// compared one by one, including later ones of package bgp.

// The fields that a plan shows, or that Compare evaluates itself.
var (
	shownOfSession = []string{"Address", "Port", "Type", "From", "LocalAS", "PeerAS", "Source", "Passive", "Password",
		"PasswordFrom", "MultihopTTL",
		"TTLSecurity", "KeepaliveSeconds", "RestartSeconds", "ReflectorClient", "AllowOwnAS", "NextHop", "Filters"}
	shownOfOrigin  = []string{"Prefix", "Communities", "LargeCommunities", "Blackhole"}
	shownOfDesired = []string{"Global", "Sessions", "Conflicts", "Notices", "Originated", "Filters"}
)

// unshown compares the other fields of two structs.
func unshown(from, to any, shown []string) []Field {
	var list []Field
	a, b := reflect.ValueOf(from), reflect.ValueOf(to)
	for i := range a.NumField() {
		name := a.Type().Field(i).Name
		x, y := a.Field(i).Interface(), b.Field(i).Interface()
		if !slices.Contains(shown, name) && !reflect.DeepEqual(x, y) {
			list = append(list, Field{camel(name), plainText(x), plainText(y)})
		}
	}
	return list
}

// camel returns a field's name in JSON: "holdSeconds", "bfd".
func camel(name string) string {
	if strings.ToUpper(name) == name {
		return strings.ToLower(name)
	}
	return strings.ToLower(name[:1]) + name[1:]
}

// plainText formats any value; an invalid address is empty.
func plainText(v any) string {
	if a, ok := v.(netip.Addr); ok {
		return addrText(a)
	}
	return fmt.Sprintf("%+v", v)
}

// ruleTexts lists, by name, the parts of a node's state that a plan does not show.
func ruleTexts(d bgp.Desired) map[string][]string {
	m := map[string][]string{}
	v := reflect.ValueOf(d)
	for i := range v.NumField() {
		name := v.Type().Field(i).Name
		if slices.Contains(shownOfDesired, name) || name == "Refusals" || v.Field(i).IsZero() {
			continue
		}
		if f := v.Field(i); f.Kind() == reflect.Slice {
			for j := range f.Len() {
				m[camel(name)] = append(m[camel(name)], plainText(f.Index(j).Interface()))
			}
			continue
		}
		m[camel(name)] = []string{plainText(v.Field(i).Interface())}
	}
	for _, r := range d.Refusals {
		if r.Class != bgp.RefusedOwnPrefix { // shown as the blocks of the node
			m["refusals"] = append(m["refusals"], refusalText(r))
		}
	}
	for _, f := range d.Filters {
		for side, rules := range map[string][]bgp.Rule{"importV4": f.ImportV4, "exportV4": f.ExportV4,
			"importV6": f.ImportV6, "exportV6": f.ExportV6} {
			for _, r := range rules {
				m["BGPFilter/"+f.Name+" "+side] = append(m["BGPFilter/"+f.Name+" "+side], ruleText(r))
			}
		}
	}
	return m
}

// refusalText formats a rule about routes that are refused.
func refusalText(r bgp.Refusal) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s, length %d to %d: %s", r.Match.CIDR, r.Match.Min, r.Match.Max, r.Reason)
	if len(r.Also) > 0 {
		fmt.Fprintf(&b, "; also %v", r.Also)
	}
	if r.Outsiders {
		b.WriteString("; from external peers")
	}
	if len(r.Except) > 0 {
		fmt.Fprintf(&b, "; except %v", r.Except)
	}
	return b.String()
}

// ruleText formats the conditions and operations of a rule that are set.
func ruleText(r bgp.Rule) string {
	set := map[string]any{}
	v := reflect.ValueOf(r)
	for i := range v.NumField() {
		if name := v.Type().Field(i).Name; name != "Name" && !v.Field(i).IsZero() {
			set[camel(name)] = v.Field(i).Interface()
		}
	}
	text, err := json.Marshal(set)
	if err != nil {
		return fmt.Sprintf("%+v", r)
	}
	return string(text)
}
