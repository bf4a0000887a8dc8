package rights_test

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/manxnet/manx/datastore/kubernetes/form"
	"github.com/manxnet/manx/integration/kubernetes/rights"
)

var writeRights = flag.Bool("write-rights", false, "write the table of docs/kubernetes-rights.md")

// step is a part of TestShipped, in the installations that have it.
type step struct {
	name string
	in   func(installation) bool
	do   func(*world, *testing.T)
}

func always(installation) bool         { return true }
func inKubernetes(i installation) bool { return i.kubernetes() }
func withEtcd(i installation) bool     { return !i.kubernetes() }
func controlling(i installation) bool  { return i.controllers }
func both(a, b func(installation) bool) func(installation) bool {
	return func(i installation) bool { return a(i) && b(i) }
}

var steps = []step{
	{rights.Start, always, (*world).started},
	{rights.Pods, always, (*world).pods},
	{rights.PluginAlone, inKubernetes, (*world).pluginAlone},
	{rights.PluginAlone, withEtcd, (*world).pluginAloneInEtcd},
	{rights.Passwords, always, (*world).passwords},
	{rights.Events, always, (*world).events},
	{rights.NodeStatus, inKubernetes, (*world).nodeStatus},
	{rights.Overlay, inKubernetes, (*world).overlay},
	{rights.AnotherRelease, inKubernetes, (*world).anotherRelease},
	{rights.LoadBalancer, controlling, (*world).loadBalancer},
	{rights.HostEndpoints, both(inKubernetes, controlling), (*world).hostEndpoints},
	{rights.OldNames, installation.renames, (*world).oldNames},
	{rights.OldNames, both(withEtcd, controlling), (*world).oldNameInEtcd},
	{rights.Carried, both(withEtcd, controlling), (*world).mirrorObjects},
	{rights.NodeGone, both(inKubernetes, controlling), (*world).nodeGone},
	{rights.NodeGone, both(withEtcd, controlling), (*world).nodeGoneFromEtcd},
	{rights.Deletions, installation.inV3, (*world).deletions},
	{rights.Mistakes, both(inKubernetes, controlling), (*world).mistakes},
	{rights.Retry, inKubernetes, (*world).storeInvalid},
}

// renames reports whether custom resources of policies may have names from before Calico 3.32.
func (i installation) renames() bool {
	return i.kubernetes() && i.controllers && i.api() == "crd.projectcalico.org"
}

// inV3 reports whether the controllers give finalizers to custom resources.
func (i installation) inV3() bool { return i.controllers && i.group == form.V3 }

// atOnce bounds the installations that run at the same time, each with an API server: they wait more than they compute.
var atOnce = make(chan struct{}, 2)

// TestShipped exercises Manx with the rights of the chart: no call is denied, and each right is exercised by the step
// that the table of rights names.
func TestShipped(t *testing.T) {
	for _, i := range installations {
		t.Run(i.name, func(t *testing.T) {
			t.Parallel()
			atOnce <- struct{}{}
			defer func() { <-atOnce }()
			documents, grants := i.objects(t)
			table, err := rights.NewTable(rights.Rows, i.api())
			must(t, err)
			w := newWorld(t, i, documents)
			for _, s := range steps {
				if !s.in(i) {
					continue
				}
				if !t.Run(s.name, func(t *testing.T) { w.run(t, s, table.Of(s.name, grants)) }) {
					return // later steps build on it
				}
			}
			for _, c := range rights.Denied(w.calls(t)) {
				t.Errorf("denied: %v", c)
			}
			for _, g := range grants {
				if by := table[g].By; by != "" && !slices.ContainsFunc(steps, func(s step) bool {
					return s.name == by && s.in(i)
				}) {
					t.Errorf("granted and not used: %v; there is no step %q in this installation", g, by)
				}
			}
		})
	}
}

// run runs a step, and waits until its rights have been used.
func (w *world) run(t *testing.T, s step, needed []rights.Grant) {
	w.mark(t)
	w.needed = needed
	s.do(w, t)
	until(t, "rights that this step is to use", func() error {
		left := w.unused(t)
		if len(left) == 0 {
			return nil
		}
		var text []string
		for _, g := range left {
			text = append(text, g.String())
		}
		return fmt.Errorf("granted and not used:\n%s", strings.Join(text, "\n"))
	})
}

const document = "../../../docs/kubernetes-rights.md"

// TestRightsHaveRows compares the chart with the table of rights, and both with the document.
func TestRightsHaveRows(t *testing.T) {
	type row struct{ account, right, by string }
	in := map[row][]string{}
	used := map[int]bool{}
	for _, i := range append(slices.Clone(installations), leaving) {
		_, grants := i.objects(t)
		table, err := rights.NewTable(rights.Rows, i.api())
		must(t, err)
		for _, g := range table.Unknown(grants) {
			t.Errorf("%s: %v has no row", i.name, g)
		}
		for _, g := range grants {
			r := table[g]
			used[slices.Index(rights.Rows, r)] = true
			_, account, _ := strings.Cut(g.Account, ":")
			text, by := strings.TrimPrefix(g.String(), g.Account+": "), r.By
			names := []string{"ipamconfigurations", "ipamconfigs"}
			if i.api() != "" { // with etcd there are no rights on Calico's objects
				names = append(names, " "+i.api()+",", " Calico's group,")
			}
			text = strings.NewReplacer(names...).Replace(text + ",")
			if by == "" {
				by = "nothing: " + r.Reason
			}
			at := row{account, strings.TrimSuffix(text, ","), by}
			in[at] = append(in[at], i.name)
		}
	}
	table, err := rights.NewTable(rights.Rows, rights.Migration)
	must(t, err)
	_, more := migrationRights(t)
	for _, g := range table.Unknown(more) {
		t.Errorf("%s: %v has no row", migrating.name, g)
	}
	for _, g := range more {
		used[slices.Index(rights.Rows, table[g])] = true
		_, account, _ := strings.Cut(g.Account, ":")
		by := table[g].By
		if by == "" {
			by = "nothing: " + table[g].Reason
		}
		in[row{account, strings.TrimPrefix(g.String(), g.Account+": "), by}] = []string{migrating.name}
	}
	for n, r := range rights.Rows {
		if !used[n] {
			t.Errorf("a row of rights without an account: %s %s", r.Verbs, r.Resources)
		}
	}
	var lines []string
	for r, names := range in {
		lines = append(lines, fmt.Sprintf("| `%s` | %s | %s | %s |\n", r.account, r.right, r.by, where(names)))
	}
	slices.Sort(lines)
	writeTable(t, strings.Join(lines, ""))
}

// where names the installations with a right, in few words.
func where(names []string) string {
	var text []string
	has := func(name string) bool { return slices.Contains(names, name) }
	if has(migrating.name) {
		return "kubernetes with both groups, `datastoreMigration=true`"
	}
	for _, of := range []string{"kubernetes", "etcd"} {
		if of == "kubernetes" && has(leaving.name) {
			return "kubernetes with projectcalico.org, `cleanup=true`"
		}
		if of == "kubernetes" && !has(of) && has("kubernetes-v3") {
			text = append(text, "kubernetes with projectcalico.org, controllers")
		}
		if !has(of) {
			continue
		}
		word := of
		if of == "kubernetes" && !has("kubernetes-v3") {
			word += " with crd.projectcalico.org"
		}
		if !has(of + "-no-controllers") {
			word += ", controllers"
		}
		text = append(text, word)
	}
	return strings.Join(text, "; ")
}

// writeTable compares the table in the document, or writes it.
func writeTable(t *testing.T, table string) {
	t.Helper()
	raw, err := os.ReadFile(document)
	must(t, err)
	const begin, end = "<!-- begin of the table -->\n", "<!-- end of the table -->\n"
	before, rest, ok := strings.Cut(string(raw), begin)
	_, after, also := strings.Cut(rest, end)
	if !ok || !also {
		t.Fatalf("%s has no marks of a table", document)
	}
	text := before + begin + "\n| account | right | exercised by | in installations |\n|---|---|---|---|\n" + table +
		"\n" + end +
		after
	switch {
	case *writeRights:
		must(t, os.WriteFile(document, []byte(text), 0o644))
	case text != string(raw):
		t.Errorf("%s is not current: go test ./integration/kubernetes/rights -run TestRightsHaveRows -write-rights",
			document)
	}
}
