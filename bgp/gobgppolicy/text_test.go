package gobgppolicy

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/osrg/gobgp/v4/api"
)

// lines writes statements and sets of a policy, one on each line: "DIRECTION NAME: CONDITIONS => ACTIONS" and
// "set NAME: CONTENT". The number of a statement, which orders it, is left out.
func lines(p Policy) (list []string) {
	for _, policy := range p.Request.Policies {
		for i, s := range policy.Statements {
			direction, rest, _ := strings.Cut(s.Name, " ")
			number, name, _ := strings.Cut(rest, " ")
			if number != fmt.Sprintf("%04d", i) || policy.Name != "manx-"+direction {
				name = "WRONG NAME " + s.Name
			}
			list = append(list, fmt.Sprintf("%s %s: %s => %s", direction, name, conditions(s.Conditions),
				actions(s.Actions)))
		}
	}
	for _, s := range p.Request.DefinedSets {
		content := slices.Clone(s.List)
		for _, p := range s.Prefixes {
			content = append(content, fmt.Sprintf("%s %d-%d", p.IpPrefix, p.MaskLengthMin, p.MaskLengthMax))
		}
		kind := strings.ToLower(strings.TrimPrefix(s.DefinedType.String(), "DEFINED_TYPE_"))
		list = append(list, fmt.Sprintf("set %s %s: %s", kind, s.Name, strings.Join(content, ", ")))
	}
	return list
}

func conditions(c *api.Conditions) string {
	var list []string
	set := func(kind string, m *api.MatchSet) {
		if m != nil {
			how := strings.ToLower(strings.TrimPrefix(m.Type.String(), "TYPE_"))
			list = append(list, fmt.Sprintf("%s %s %s", kind, how, m.Name))
		}
	}
	set("peer", c.NeighborSet)
	set("prefix", c.PrefixSet)
	if c.RouteType != api.Conditions_ROUTE_TYPE_UNSPECIFIED {
		list = append(list, strings.ToLower(strings.TrimPrefix(c.RouteType.String(), "ROUTE_TYPE_")))
	}
	set("community", c.CommunitySet)
	set("large", c.LargeCommunitySet)
	set("path", c.AsPathSet)
	if c.LocalPrefEq != nil {
		list = append(list, fmt.Sprintf("pref %d", c.LocalPrefEq.Value))
	}
	if len(c.NextHopInList) > 0 {
		list = append(list, "via "+strings.Join(c.NextHopInList, " "))
	}
	return strings.Join(list, ", ")
}

func actions(a *api.Actions) string {
	var list []string
	communities := func(kind string, c *api.CommunityAction) {
		if c != nil {
			what := strings.ToLower(strings.TrimPrefix(c.Type.String(), "TYPE_"))
			list = append(list, fmt.Sprintf("%s %s %s", what, kind, strings.Join(c.Communities, " ")))
		}
	}
	communities("community", a.Community)
	communities("large", a.LargeCommunity)
	if a.LocalPref != nil {
		list = append(list, fmt.Sprintf("pref %d", a.LocalPref.Value))
	}
	if p := a.AsPrepend; p != nil {
		list = append(list, fmt.Sprintf("prepend %d x %d", p.Asn, p.Repeat))
	}
	if a.Med != nil {
		list = append(list, fmt.Sprintf("MED %s %d", strings.ToLower(a.Med.Type.String()), a.Med.Value))
	}
	if a.Nexthop != nil {
		list = append(list, fmt.Sprintf("next hop self=%t unchanged=%t", a.Nexthop.Self, a.Nexthop.Unchanged))
	}
	if a.RouteAction != api.RouteAction_ROUTE_ACTION_UNSPECIFIED {
		list = append(list, strings.ToLower(strings.TrimPrefix(a.RouteAction.String(), "ROUTE_ACTION_")))
	}
	return strings.Join(list, ", ")
}

// update rewrites testdata from the results: go test ./bgp/gobgppolicy -update. Read the difference afterwards.
var update = flag.Bool("update", false, "write testdata")

// golden is a file of expected lines, in sections that begin with "== NAME".
type golden struct {
	t    *testing.T
	file string
	want map[string]string
	all  strings.Builder
}

func openGolden(t *testing.T, name string) *golden {
	t.Helper()
	g := &golden{t: t, file: filepath.Join("testdata", name), want: map[string]string{}}
	content, err := os.ReadFile(g.file)
	if err != nil && !*update {
		t.Fatal(err)
	}
	for section := range strings.SplitSeq("\n"+string(content), "\n== ") {
		name, lines, _ := strings.Cut(section, "\n")
		g.want[name] = lines
	}
	return g
}

// compare compares the lines of a section.
func (g *golden) compare(name string, have []string) {
	g.t.Helper()
	text := strings.Join(have, "\n")
	fmt.Fprintf(&g.all, "== %s\n%s\n", name, text)
	if want, known := g.want[name]; !*update && (!known || strings.TrimSuffix(want, "\n") != text) {
		g.t.Errorf("%s: have\n%s\nwant\n%s", name, text, want)
	}
	delete(g.want, name)
}

// close checks that each section of the file was compared.
func (g *golden) close() {
	g.t.Helper()
	if *update {
		if err := os.WriteFile(g.file, []byte(g.all.String()), 0o644); err != nil {
			g.t.Error(err)
		}
		return
	}
	delete(g.want, "") // before the first section
	for name := range g.want {
		g.t.Errorf("nothing makes the section %q of %s", name, g.file)
	}
}
