package labels

import (
	"fmt"
	"runtime"
	"strconv"
	"testing"

	"github.com/manxnet/manx/datastore/selector"
)

// cluster is a large cluster: pods of Deployments in namespaces, with the usual policies.
type cluster struct {
	x               *Index[*int, int]
	ids             []*int
	selectors       []*selector.Selector
	pods, namespace int
	distinct        bool // each pod has its own label, like pods of StatefulSets
}

func newCluster(pods, selectors, namespaces int, distinct bool) *cluster {
	c := &cluster{pods: pods, namespace: namespaces, distinct: distinct, ids: make([]*int, pods)}
	numbers := make([]int, pods)
	for i := range c.ids {
		c.ids[i] = &numbers[i]
	}
	for i := range selectors {
		c.selectors = append(c.selectors, c.selector(i))
	}
	c.x = New(func(int, *int) {}, func(int, *int) {})
	return c
}

func (c *cluster) setItem(i int, version string) {
	ns := strconv.Itoa(i % c.namespace)
	own := map[string]string{
		"projectcalico.org/namespace": "ns-" + ns, "projectcalico.org/orchestrator": "k8s",
		"projectcalico.org/serviceaccount": "default",
		"app":                              "app-" + strconv.Itoa(i/c.namespace%10),
		"env":                              []string{"prod", "test"}[i%2], "version": version,
	}
	if c.distinct {
		own["statefulset.kubernetes.io/pod-name"] = "pod-" + strconv.Itoa(i)
	}
	c.x.SetItem(c.ids[i], own, []string{"kns.ns-" + ns, "ksa.ns-" + ns + ".default"})
}

func (c *cluster) setParents() {
	for i := range c.namespace {
		ns := fmt.Sprint("ns-", i)
		c.x.SetParent("kns."+ns, map[string]string{"pcns.projectcalico.org/name": ns,
			"pcns.team": fmt.Sprint("team-", i%20)})
		c.x.SetParent("ksa."+ns+".default", map[string]string{"pcsa.projectcalico.org/name": "default"})
	}
}

func (c *cluster) selector(i int) *selector.Selector {
	own := fmt.Sprintf("projectcalico.org/namespace == 'ns-%d'", i%c.namespace)
	app := fmt.Sprintf("app == 'app-%d'", i/c.namespace%10)
	var text string
	switch i % 8 {
	case 0, 1, 2:
		text = fmt.Sprintf("(projectcalico.org/orchestrator == 'k8s' && %s) && %s", app, own)
	case 3:
		text = fmt.Sprintf("(projectcalico.org/orchestrator == 'k8s') && %s", own)
	case 4:
		text = fmt.Sprintf("pcns.projectcalico.org/name == 'ns-%d' && (projectcalico.org/orchestrator == 'k8s' && %s)",
			(i+7)%c.namespace, app)
	case 5:
		text = fmt.Sprintf("env in {'prod', 'dev'} && app not in {'app-1'} && %s", own)
	case 6:
		text = fmt.Sprintf("(%s || version == 'v%d') && %s && !has(excluded)", app, i, own)
	default:
		text = fmt.Sprintf("version == 'never-%d' && has(env)", i)
	}
	sel, err := selector.Parse(text)
	if err != nil {
		panic(err)
	}
	return sel
}

func (c *cluster) setItems() {
	for i := range c.pods {
		c.setItem(i, "v1")
	}
}

func (c *cluster) setSelectors() {
	for i, s := range c.selectors {
		c.x.SetSelector(i, s)
	}
}

// The cost of a change follows its size, not the number of objects, in any order of arrival.
func TestOnlyCandidatesAreEvaluated(t *testing.T) {
	for _, itemsFirst := range []bool{true, false} {
		t.Run(fmt.Sprint("items first ", itemsFirst), func(t *testing.T) {
			c := newCluster(10000, 1000, 50, true)
			c.setParents()
			if itemsFirst {
				c.setItems()
				c.setSelectors()
			} else {
				c.setSelectors()
				c.setItems()
			}
			tried := func(what string, limit uint64, change func()) {
				t.Helper()
				before := c.x.tried
				change()
				if n := c.x.tried - before; n == 0 || n > limit {
					t.Errorf("%s: %d evaluations, want at most %d", what, n, limit)
				}
			}
			tried("a changed item", 60, func() { c.setItem(17, "v2") })
			tried("a new selector", 250, func() { c.x.SetSelector(-1, c.selector(1001)) })
			tried("a changed namespace", 200*60,
				func() { c.x.SetParent("kns.ns-3", map[string]string{"pcns.team": "other"}) })
		})
	}
}

// Replicas of a Deployment are evaluated once.
func TestEqualItemsAreEvaluatedOnce(t *testing.T) {
	c := newCluster(10000, 100, 50, false)
	c.setParents()
	c.setSelectors()
	c.setItem(0, "v1")
	before := c.x.tried
	c.setItem(500, "v1") // as item 0
	if c.x.tried != before {
		t.Errorf("%d evaluations for an item that is like another one", c.x.tried-before)
	}
}

func BenchmarkItemChanged(b *testing.B) {
	for _, distinct := range []bool{true, false} {
		b.Run("100k-items-10k-selectors/"+map[bool]string{true: "distinct", false: "replicas"}[distinct],
			func(b *testing.B) {
				c := newCluster(100000, 10000, 500, distinct)
				c.setParents()
				c.setItems()
				c.setSelectors()
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ {
					c.setItem(i%c.pods, []string{"v2", "v1"}[i/c.pods%2])
				}
			})
	}
}

func BenchmarkSelectorAdded(b *testing.B) {
	c := newCluster(100000, 10000, 500, true)
	c.setParents()
	c.setItems()
	c.setSelectors()
	list := c.selectors[:1000]
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		c.x.SetSelector(-1, list[i%len(list)])
		c.x.DeleteSelector(-1)
	}
}

func BenchmarkLoad100k(b *testing.B) {
	for _, distinct := range []bool{true, false} {
		b.Run(map[bool]string{true: "distinct", false: "replicas"}[distinct], func(b *testing.B) {
			for b.Loop() {
				var before, after runtime.MemStats
				c := newCluster(100000, 10000, 500, distinct)
				runtime.GC()
				runtime.ReadMemStats(&before)
				c.setParents()
				c.setItems()
				c.setSelectors()
				b.StopTimer()
				runtime.GC()
				runtime.ReadMemStats(&after)
				b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/1e6, "MB")
				runtime.KeepAlive(c)
				b.StartTimer()
			}
		})
	}
}
