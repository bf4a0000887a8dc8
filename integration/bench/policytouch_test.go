package bench

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/manxnet/manx/dataplane/policy"
	"github.com/manxnet/manx/dataplane/ruleset"
	"github.com/manxnet/manx/datastore/model"
)

// After the start a change touches only the objects that it affects, for any number of policies.
func TestAChangeTouchesOnlyWhatItIsAbout(t *testing.T) {
	small := cluster{policies: 2*benchNamespaces + benchGlobals, remotes: 2000}
	objects := model.NewSet(slices.Collect(small.all)...)
	calculator := policy.Build(policy.Config{Node: benchNode}, objects, nil)
	if n := len(calculator.Table().TakeChanges().Chains); n < 300 {
		t.Fatalf("only %d chains at the start", n)
	}
	apply := func(k model.Key, o *model.Object) ruleset.Changes {
		if o == nil {
			delete(objects, k)
		} else {
			objects[k] = o
		}
		calculator.Update(objects, k)
		return calculator.Table().TakeChanges()
	}
	chains := func(c ruleset.Changes) (names []string) {
		for _, ch := range c.Chains {
			names = append(names, ch.Name)
		}
		return names
	}
	changed := func(o *model.Object) ruleset.Changes { return apply(o.Key, o) }

	t.Run("rule of a policy", func(t *testing.T) {
		c := changed(small.policy(benchNamespaces+3, 9999))
		if got := chains(c); !slices.Equal(got, []string{"pi/NetworkPolicy/ns-3/default.policy-503"}) ||
			len(c.Sets)+len(c.Maps) > 0 {
			t.Errorf("chains %v, %d sets, %d maps", got, len(c.Sets), len(c.Maps))
		}
	})
	t.Run("rule of a policy that selects nobody here", func(t *testing.T) {
		if c := changed(small.policy(300, 9999)); !c.Empty() {
			t.Errorf("%+v", c)
		}
	})
	t.Run("rule of a policy that selects everybody", func(t *testing.T) {
		c := changed(small.global(5, 9999))
		if got := chains(c); !slices.Equal(got, []string{"pi/GlobalNetworkPolicy/default.global-5"}) ||
			len(c.Maps) > 0 {
			t.Errorf("chains %v, %d maps", got, len(c.Maps))
		}
	})
	t.Run("endpoint of another node", func(t *testing.T) {
		pod := podOn("node-7", 5007, "v1") // a monitoring one
		for _, o := range []*model.Object{pod, nil} {
			c := apply(pod.Key, o)
			elements := 0
			for _, s := range c.Sets {
				elements += len(s.Add) + len(s.Remove)
				if s.Created || s.Deleted {
					t.Errorf("set %s of %s comes or goes", s.Name, s.Comment)
				}
			}
			if len(c.Chains)+len(c.Maps) > 0 || elements == 0 || elements != len(c.Sets) {
				t.Errorf("chains %v, %d maps, %d elements of %d sets", chains(c), len(c.Maps), elements, len(c.Sets))
			}
		}
	})
	t.Run("policy for one pod comes and goes", func(t *testing.T) {
		p := small.policy(2*benchNamespaces+benchGlobals+5, 8080)
		for _, o := range []*model.Object{p, nil} {
			for _, name := range chains(apply(p.Key, o)) {
				if !strings.HasPrefix(name, "in/") && name != "pi/NetworkPolicy/ns-15/"+p.Key.Name {
					t.Errorf("chain %s changes", name)
				}
			}
		}
	})
	t.Run("local pod comes and goes", func(t *testing.T) {
		pod := podOn(benchNode, small.remotes+benchNamespaces, "v1") // like one that is there
		for _, o := range []*model.Object{pod, nil} {
			c := apply(pod.Key, o)
			shared := slices.DeleteFunc(chains(c), func(name string) bool {
				return strings.HasSuffix(name, "/"+pod.Workload().Interface) // limits and checks of its own
			})
			if len(shared) > 2 || len(c.Chains) > 5 || len(c.Maps) != 5 {
				t.Errorf("%s: chains %v, %d maps", fmt.Sprint(o != nil), chains(c), len(c.Maps))
			}
		}
	})
}
