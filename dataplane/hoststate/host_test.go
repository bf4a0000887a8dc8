package hoststate

import (
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"

	"github.com/manxnet/manx/datastore/felixconfig"
	"github.com/manxnet/manx/datastore/model"
)

func node(name, ip string) *model.Object {
	return model.NewObject(model.ResourceKey(model.KindNode, name),
		&model.Node{Spec: model.NodeSpec{BGP: &model.NodeBGPSpec{IPv4Address: ip}}})
}

func workload(name, node, iface string) *model.Object {
	return model.NewObject(model.Key{Kind: model.KindWorkloadEndpoint, Namespace: "default", Name: name},
		&model.WorkloadEndpoint{Spec: model.WorkloadEndpointSpec{Node: node, InterfaceName: iface}})
}

func pool(name, cidr string) *model.Object {
	p := &model.IPPool{}
	p.Spec.CIDR, p.Spec.IPIPMode = cidr, v3.IPIPModeAlways
	return model.NewObject(model.ResourceKey(model.KindIPPool, name), p)
}

func affinity(host, cidr string) *model.Object {
	k := model.AffinityKey(model.Affinity{Type: model.AffinityHost, Host: host, CIDR: netip.MustParsePrefix(cidr)})
	return model.NewObject(k, &model.BlockAffinity{State: model.StateConfirmed})
}

func felix(name, prefix string) *model.Object {
	f := &model.FelixConfiguration{}
	f.Spec.InterfacePrefix = prefix
	return model.NewObject(model.ResourceKey(model.KindFelixConfiguration, name), f)
}

// view is the state that targets receive.
type view struct {
	own       string
	pools     []string
	blocks    []netip.Prefix
	workloads []string
	prefixes  felixconfig.InterfacePrefixes
}

func viewOf(h *Host) view {
	v := view{own: h.BGPSpec().IPv4Address, pools: slices.Sorted(maps.Keys(h.Pools)),
		blocks: slices.SortedFunc(maps.Keys(h.Blocks), netip.Prefix.Compare), prefixes: h.Interfaces}
	for k := range h.Usable() {
		v.workloads = append(v.workloads, k.Name)
	}
	slices.Sort(v.workloads)
	return v
}

func (v view) equal(w view) bool {
	return v.own == w.own && slices.Equal(v.pools, w.pools) && slices.Equal(v.blocks, w.blocks) &&
		slices.Equal(v.workloads, w.workloads) && slices.Equal(v.prefixes, w.prefixes)
}

// Any order of the same changes, one by one or several in one state, ends in the state of a full read. Changes that
// concern this host are reported as such.
func TestChangesEndAsReadingEverything(t *testing.T) {
	all := []*model.Object{node("here", "10.1.0.5/24"), node("there", "10.1.0.9/24"), workload("a", "here", "cali1"),
		workload("b", "there", "cali2"), workload("c", "here", "tap1"), pool("p", "10.244.0.0/16"),
		affinity("here", "10.244.1.0/26"), affinity("there", "10.244.2.0/26"), felix("default", "tap"),
		felix("node.here", "cali,tap")}
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 0))
		set, h := model.Set{}, New("here", nil)
		h.Take(State{Reader: set})
		var waiting State
		for range 60 {
			o := all[r.IntN(len(all))]
			if set = maps.Clone(set); set[o.Key] == nil {
				set[o.Key] = o
			} else {
				delete(set, o.Key)
			}
			waiting = waiting.Then(State{Reader: set, Changed: []model.Key{o.Key}})
			if r.IntN(2) == 0 {
				continue
			}
			before := viewOf(h)
			h.Take(waiting)
			waiting = State{}
			fresh := New("here", nil)
			fresh.Take(State{Reader: set})
			if !viewOf(h).equal(viewOf(fresh)) {
				t.Fatalf("seed %d: %+v, read at once %+v", seed, viewOf(h), viewOf(fresh))
			}
			if !h.Concerned && !viewOf(h).equal(before) {
				t.Fatalf("seed %d: a change from %+v to %+v concerns nobody", seed, before, viewOf(h))
			}
			if h.IsNode(netip.MustParseAddr("10.1.0.9")) != (set[all[1].Key] != nil) {
				t.Fatalf("seed %d: the other node is known: %v", seed, set[all[1].Key] == nil)
			}
		}
	}
}

// The cost follows the change: objects of other hosts do not concern this one, nor does a state without changes.
func TestOthersDoNotConcernThisHost(t *testing.T) {
	h := New("here", nil)
	h.Take(State{DatastoreSynced: true})
	if h.Known() || h.Concerned || !h.DatastoreSynced {
		t.Errorf("without a snapshot: known %v, concerned %v, in sync %v", h.Known(), h.Concerned, h.DatastoreSynced)
	}
	set := model.NewSet(node("here", "10.1.0.5/24"), workload("b", "there", "cali2"),
		node("there", "10.1.0.9/24"), affinity("there", "10.244.2.0/26"))
	h.Take(State{Reader: set})
	if !h.Known() || !h.Concerned || !h.All {
		t.Errorf("the first snapshot: known %v, concerned %v, all %v", h.Known(), h.Concerned, h.All)
	}
	var keys []model.Key
	for k := range set {
		if k != model.ResourceKey(model.KindNode, "here") {
			keys = append(keys, k)
		}
	}
	for name, s := range map[string]State{
		"objects of others": {Reader: set, Changed: keys}, "nothing": {Reader: set}, "no snapshot": {BGPSynced: true},
	} {
		if h.Take(s); h.Concerned || h.Reader == nil {
			t.Errorf("%s: concerned %v, a snapshot %v", name, h.Concerned, h.Reader != nil)
		}
	}
	if h.Take(State{Changed: keys, All: true}); !h.Concerned {
		t.Error("everything may differ, and concerns nobody")
	}
}

// A newer state keeps all hints of the older one, and has the newest value of every other field.
func TestThenKeepsWhatDiffers(t *testing.T) {
	one, two := model.ResourceKey(model.KindNode, "one"), model.ResourceKey(model.KindNode, "two")
	set := model.Set{}
	s := State{}.Then(State{Reader: set, Changed: []model.Key{one}, All: true, Statics: make([]Static, 2),
		BGPSynced: true})
	s = s.Then(State{Changed: []model.Key{two}, DatastoreSynced: true})
	if !slices.Equal(s.Changed, []model.Key{one, two}) || !s.All || s.Reader == nil || len(s.Statics) != 0 ||
		s.BGPSynced || !s.DatastoreSynced {
		t.Errorf("%+v", s)
	}
}
