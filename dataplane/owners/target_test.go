package owners

import (
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/manxnet/manx/dataplane/hoststate"
	"github.com/manxnet/manx/dataplane/reconcile"
	"github.com/manxnet/manx/datastore/model"
)

// node is this host with a cluster around it.
type node struct {
	t         *testing.T
	target    *Target
	host      *hoststate.Host
	objects   map[model.Key]*model.Object
	now       time.Time
	took      time.Duration // by one turn
	failing   bool
	forgotten []string
}

func newNode(t *testing.T, file string) *node {
	n := &node{t: t, host: hoststate.New("here", nil), now: time.Unix(1e9, 0), objects: map[model.Key]*model.Object{}}
	pool := &model.IPPool{Spec: model.IPPoolSpec{CIDR: "10.244.0.0/16"}}
	other := &model.Node{Spec: model.NodeSpec{BGP: &model.NodeBGPSpec{IPv4Address: "10.244.9.9/24"}}}
	for _, o := range []*model.Object{model.NewObject(model.ResourceKey(model.KindIPPool, "p"), pool),
		model.NewObject(model.ResourceKey(model.KindNode, "there"), other)} {
		n.objects[o.Key] = o
	}
	loop := reconcile.NewLoop()
	loop.Background = func(f func()) { f() }
	n.target = New(Config{Connections: n, Loop: loop, Now: func() time.Time { return n.now }, Logger: zap.NewNop(),
		File: file})
	return n
}

func (n *node) ForgetConnections(list []netip.Addr) (int, error) {
	n.now = n.now.Add(n.took)
	if n.failing {
		return 0, unix.ENOBUFS
	}
	for _, a := range list {
		n.forgotten = append(n.forgotten, a.String())
	}
	return len(list), nil
}

// pod is a workload of a node with addresses; without any it is gone.
type pod struct{ name, uid, node, addresses string }

// put takes over changed pods in one state.
func (n *node) put(all bool, pods ...pod) {
	state := hoststate.State{DatastoreSynced: true, All: all}
	for _, p := range pods {
		w := &model.WorkloadEndpoint{Spec: model.WorkloadEndpointSpec{Node: p.node, Orchestrator: "k8s", Pod: p.name,
			Endpoint: "eth0", IPNetworks: strings.Fields(p.addresses)}}
		w.Name, w.Namespace, w.UID = p.name, "default", types.UID(p.uid)
		k := model.Key{Kind: model.KindWorkloadEndpoint, Namespace: "default", Name: p.name}
		delete(n.objects, k)
		if p.addresses != "" {
			o := model.NewObject(k, w)
			if p.node != "here" {
				o = o.Remote(&model.CommonEndpoint{}, func(s string) string { return s },
					func(c *model.CommonEndpoint) *model.CommonEndpoint { copied := *c; return &copied })
			}
			n.objects[k] = o
		}
		state.Changed = append(state.Changed, k)
	}
	state.Reader = model.NewSet(slices.Collect(maps.Values(n.objects))...)
	n.host.Take(state)
	n.target.SetState(n.host)
}

func (n *node) want(what string, forgotten ...string) {
	n.t.Helper()
	slices.Sort(n.forgotten)
	if !slices.Equal(n.forgotten, forgotten) {
		n.t.Errorf("%s: connections of %q are forgotten, want %q", what, n.forgotten, forgotten)
	}
	n.forgotten = nil
}

func TestOwnersChange(t *testing.T) {
	n := newNode(t, "")
	n.put(true, pod{"a", "1", "there", "10.244.0.1/32"}, pod{"local", "9", "here", "10.244.0.9/32"})
	n.want("the first state")
	n.put(false, pod{"b", "2", "there", "10.244.0.2/32"})
	n.want("a new pod")
	n.put(false, pod{"b", "2", "elsewhere", "10.244.0.2/32 10.244.0.3/32"})
	n.want("the same pod")
	n.put(false, pod{name: "a"})
	n.want("a pod is gone", "10.244.0.1")
	n.put(false, pod{"b", "3", "there", "10.244.0.2/32"})
	n.want("another pod of the same name and address, in one change", "10.244.0.2", "10.244.0.3")
	n.put(false, pod{"c", "4", "there", "10.244.0.2/32"})
	n.want("a pod gets the address of one that ends", "10.244.0.2")
	n.put(false, pod{name: "b"})
	n.want("that one is gone: the address is not its own")
	n.put(false, pod{name: "local"})
	n.want("a pod of this node: package route does it")
	n.put(false, pod{"d", "5", "there", "10.1.0.1/32 10.244.9.9/32"})
	n.put(false, pod{name: "d"})
	n.want("addresses outside pools, and of nodes")
	n.put(true, pod{name: "c"}, pod{"e", "6", "there", "10.244.0.6/32"})
	n.want("everything is compared", "10.244.0.2")
	n.put(false, pod{"f", "7", "here", "10.244.0.6/32"})
	n.want("a pod of this node gets the address of one elsewhere", "10.244.0.6")
}

// Many changes are one turn after a rest. Where an address passes to somebody else at once, the rest is shorter.
func TestTurnsAreBounded(t *testing.T) {
	n := newNode(t, "")
	n.took = 100 * time.Millisecond
	n.put(true, pod{"a", "1", "there", "10.244.0.1"}, pod{"b", "2", "there", "10.244.0.2"},
		pod{"c", "3", "there", "10.244.0.3"}, pod{"d", "4", "there", "10.244.0.4"})
	n.put(false, pod{name: "a"})
	n.want("the first at once", "10.244.0.1")
	n.put(false, pod{name: "b"})
	n.put(false, pod{name: "c"})
	n.want("then it rests")
	if b := netip.MustParseAddr("10.244.0.2"); !n.target.Waits(b) || n.target.Waits(b.Next().Next()) {
		t.Error("an address whose connections are still to be forgotten does not wait, or another one does")
	}
	if d := n.target.Next(); d != rest*n.took {
		t.Errorf("the next turn is in %v", d)
	}
	n.now = n.now.Add(rest * n.took)
	_, _, _ = n.target.Flush()
	n.want("together", "10.244.0.2", "10.244.0.3")
	if n.target.Waits(netip.MustParseAddr("10.244.0.2")) {
		t.Error("an address waits although its connections are forgotten")
	}
	n.put(false, pod{name: "d"})
	n.put(false, pod{"e", "5", "there", "10.244.0.4"})
	if d := n.target.Next(); d != urgentRest*n.took {
		t.Errorf("the turn for an address that another pod has is in %v", d)
	}
	n.now = n.now.Add(urgentRest * n.took)
	n.failing = true
	_, _, _ = n.target.Flush()
	if h := n.target.Health(); h.Failures != 1 || !strings.Contains(h.Problem.Error(), "no buffer space") {
		t.Errorf("%+v", h)
	}
	n.failing = false
	n.target.Retry()
	n.now = n.now.Add(rest * n.took)
	_, _, _ = n.target.Flush()
	n.want("after a failure", "10.244.0.4")
	if h := n.target.Health(); h != (reconcile.Health{}) {
		t.Errorf("%+v", h)
	}
}

func TestOwnersOverARestart(t *testing.T) {
	for name, c := range map[string]struct {
		damage func(path string) error
		want   []string
	}{
		"kept":    {func(string) error { return nil }, []string{"10.244.0.2", "10.244.0.3", "10.244.0.4"}},
		"missing": {os.Remove, nil},
		"damaged": {func(path string) error { return os.Truncate(path, 100) },
			[]string{"10.244.0.1", "10.244.0.3", "10.244.0.4", "10.244.0.5"}},
		"of anybody": {func(path string) error { return os.Chmod(path, 0o666) },
			[]string{"10.244.0.1", "10.244.0.3", "10.244.0.4", "10.244.0.5"}},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "owners")
			n := newNode(t, file)
			n.put(true, pod{"a", "1", "there", "10.244.0.1"}, pod{"b", "2", "there", "10.244.0.2"},
				pod{"c", "3", "there", "10.244.0.3"}, pod{"d", "4", "there", "10.244.0.4"},
				pod{"local", "9", "here", "10.244.0.9"})
			n.want("the first run")
			n.now = n.now.Add(saveDelay)
			_, _, _ = n.target.Flush()
			if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
				t.Fatalf("%v, %v", info, err)
			}
			if err := c.damage(file); err != nil {
				t.Fatal(err)
			}
			next := newNode(t, file)
			next.objects = n.objects
			next.put(true, pod{name: "b"}, pod{"c", "33", "there", "10.244.0.3"}, pod{name: "d"},
				pod{"e", "5", "there", "10.244.0.4 10.244.0.5"})
			next.want("the next run", c.want...)
		})
	}
}
