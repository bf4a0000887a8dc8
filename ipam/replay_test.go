package ipam

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"

	"github.com/manxnet/manx/datastore/codec"
	"github.com/manxnet/manx/datastore/etcd"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/integration/jsonlines"
)

// recorded is one write that Calico's own programs made, in testdata/history.jsonl.
type recorded struct {
	Rev int
	Op  string
	Key string
	Raw string
}

func (r recorded) object(t *testing.T) *model.Object {
	t.Helper()
	key, ok, err := etcd.ParsePath(r.Key)
	if !ok || err != nil {
		t.Fatalf("revision %d: %s: known %v, %v", r.Rev, r.Key, ok, err)
	}
	return codec.Decode(key, []byte(r.Raw), int64(r.Rev))
}

func readHistory(t *testing.T) []recorded {
	t.Helper()
	return jsonlines.Read[recorded](t, "testdata/history.jsonl")
}

// step is one operation that Calico performed: the writes from its first to its last revision.
type step struct {
	from, to int
	do       func(context.Context, *Allocator, clues) error
}

// clues are the arguments of a step that follow from its writes.
type clues struct {
	handle string
	attrs  map[string]string
}

func auto(host string, use v3.IPPoolAllowedUse, pools4, pools6 string) func(context.Context, *Allocator, clues) error {
	return func(ctx context.Context, a *Allocator, c clues) error {
		r := Request{Host: host, Handle: c.handle, Attrs: c.attrs, Use: use}
		if pools4 != "" {
			r.Num4 = 1
		}
		if pools6 != "" {
			r.Num6 = 1
		}
		if pools4 != "" && pools4 != "any" {
			r.Pools4 = []netip.Prefix{netip.MustParsePrefix(pools4)}
		}
		if pools6 != "" && pools6 != "any" {
			r.Pools6 = []netip.Prefix{netip.MustParsePrefix(pools6)}
		}
		result, err := a.AutoAssign(ctx, r)
		if err != nil {
			return err
		}
		return result.Short()
	}
}

func exact(host string, use v3.IPPoolAllowedUse, addr string) func(context.Context, *Allocator, clues) error {
	return func(ctx context.Context, a *Allocator, c clues) error {
		return a.AssignIP(ctx, AddressRequest{Address: netip.MustParseAddr(addr), Host: host, Handle: c.handle,
			Attrs: c.attrs, Use: use})
	}
}

func byHandle(ctx context.Context, a *Allocator, c clues) error {
	_, err := a.ReleaseByHandle(ctx, c.handle)
	return err
}

func byAddress(addrs ...string) func(context.Context, *Allocator, clues) error {
	return func(ctx context.Context, a *Allocator, _ clues) error {
		var releases []Release
		for _, addr := range addrs {
			releases = append(releases, Release{Address: netip.MustParseAddr(addr)})
		}
		_, err := a.ReleaseIPs(ctx, releases...)
		return err
	}
}

func affinity(host string, cidrs ...string) func(context.Context, *Allocator, clues) error {
	return func(ctx context.Context, a *Allocator, _ clues) error {
		for _, cidr := range cidrs {
			if err := a.ReleaseAffinity(ctx, Host(host), netip.MustParsePrefix(cidr), false); err != nil {
				return err
			}
		}
		return nil
	}
}

func allAffinities(ctx context.Context, a *Allocator, _ clues) error {
	return a.ReleaseHostAffinities(ctx, Host("wg-1"), false)
}

const (
	workload     = v3.IPPoolAllowedUseWorkload
	tunnel       = v3.IPPoolAllowedUseTunnel
	loadBalancer = v3.IPPoolAllowedUseLoadBalancer
)

var steps = []step{
	{25, 30, auto("h1", tunnel, "10.40.0.0/18", "")}, // claim and assign
	{31, 36, auto("h1", tunnel, "10.41.0.0/20", "")},
	{37, 42, auto("h1", tunnel, "", "fd00:40::/64")},
	{46, 51, auto("h2", tunnel, "10.40.0.0/18", "")},
	{52, 57, auto("h2", tunnel, "10.41.0.0/20", "")},
	{58, 63, auto("h2", tunnel, "", "fd00:40::/64")},
	{191, 192, auto("h1", workload, "any", "")}, // out of the host's own block
	{195, 196, auto("h1", workload, "any", "")},
	{198, 199, auto("h2", workload, "any", "")},
	{201, 204, auto("h2", workload, "any", "any")},       // both families
	{206, 210, exact("h2", workload, "10.45.0.9")},       // a given address, in a block that does not exist
	{212, 217, auto("h1", workload, "10.42.1.0/29", "")}, // a pool that does not select the node
	{220, 221, auto("h2", workload, "10.42.1.0/29", "")}, // borrowed: the pool has one block only
	{224, 225, byHandle},
	{244, 245, auto("h1", workload, "any", "")},
	{247, 248, auto("h2", workload, "any", "")},
	{250, 254, exact("h2", workload, "10.45.0.77")},
	{256, 263, auto("h1", workload, "10.42.0.0/28", "any")},
	{265, 266, auto("h1", workload, "any", "")},
	{269, 270, auto("h1", workload, "any", "")},
	{273, 274, byHandle},
	{305, 310, auto("load-balancer", loadBalancer, "any", "")}, // a virtual owner
	{311, 315, exact("load-balancer", loadBalancer, "10.46.0.20")},
	{320, 321, auto("h1", workload, "any", "")},
	{323, 324, auto("h1", workload, "any", "")},
	{326, 327, byHandle}, // with a cooldown of 45 s
	{340, 345, auto("wg-1", tunnel, "10.40.0.0/18", "")},
	{346, 351, auto("wg-1", tunnel, "", "fd00:40::/64")},
	{352, 353, auto("wg-1", tunnel, "10.40.0.0/18", "")},
	{354, 359, auto("wg-1", tunnel, "10.41.0.0/20", "")},
	{360, 361, auto("wg-1", tunnel, "", "fd00:40::/64")},
	{364, 365, auto("h2", workload, "any", "")}, // strict affinity
	{367, 368, byAddress("10.45.0.9")},
	{445, 446, byHandle}, // frees the addresses that have cooled down since 326
	{462, 463, auto("h1", workload, "any", "")},
	{465, 466, byHandle},
	{483, 484, byAddress("10.42.1.1")},                          // a borrowed address
	{488, 493, affinity("h2", "10.45.0.0/26", "10.45.0.64/26")}, // an empty block, and one in use
	{495, 499, byAddress("10.41.12.64", "10.40.49.1", "10.40.49.0")},
	{500, 508, allAffinities},
}

// Manx makes the same writes as Calico in some 40 operations, from the first claim to the removal of a node: the same
// keys in the same order with the same bytes.
func TestWritesAreCalicosWrites(t *testing.T) {
	history := readHistory(t)
	store := newMemory()
	clock := time.Unix(0, 0)
	a := New(store, nil, func() time.Time { return clock })
	for i := 0; i < len(history); {
		r := history[i]
		s := slices.IndexFunc(steps, func(s step) bool { return s.from <= r.Rev && r.Rev <= s.to })
		if s < 0 {
			if strings.Contains(r.Key, "/ipam/v2/") && !strings.HasSuffix(r.Key, "/config") {
				t.Fatalf("revision %d (%s %s) belongs to no step", r.Rev, r.Op, r.Key)
			}
			applyRecorded(t, store, r)
			i++
			continue
		}
		end := i
		for end < len(history) && history[end].Rev <= steps[s].to {
			end++
		}
		want := history[i:end]
		i = end
		t.Run(fmt.Sprintf("revisions %d to %d", steps[s].from, steps[s].to), func(t *testing.T) {
			clock = timeOf(t, want, clock)
			store.history = nil
			if err := steps[s].do(context.Background(), a, cluesOf(t, want)); err != nil {
				t.Fatal(err)
			}
			compareWrites(t, want, store.history)
		})
		if t.Failed() {
			return // later steps build on it
		}
	}
}

func applyRecorded(t *testing.T, store *memory, r recorded) {
	t.Helper()
	if r.Op == "delete" {
		delete(store.entries, r.Key)
		return
	}
	store.revision++
	store.entries[r.Key] = entry{r.object(t).Key, []byte(r.Raw), store.revision}
}

// timeOf returns when a step happened, as far as its writes show it: a new block is numbered by the nanosecond.
func timeOf(t *testing.T, want []recorded, before time.Time) time.Time {
	t.Helper()
	for _, r := range want {
		b, ok := r.object(t).Value.(*model.Block)
		if !ok || r.Op == "delete" {
			continue
		}
		if r.Op == "create" {
			return time.Unix(0, int64(b.SequenceNumber))
		}
		for _, attr := range b.Attributes {
			if attr.ReleasedAt != nil && attr.ReleasedAt.After(before) {
				before = attr.ReleasedAt.Time
			}
		}
	}
	return before
}

func cluesOf(t *testing.T, want []recorded) clues {
	t.Helper()
	var c clues
	for _, r := range want {
		if id, ok := strings.CutPrefix(r.Key, "/calico/ipam/v2/handle/"); ok && c.handle == "" {
			c.handle = id
		}
		if r.Op == "delete" {
			continue
		}
		if b, ok := r.object(t).Value.(*model.Block); ok {
			for _, attr := range b.Attributes {
				if c.handle != "" && handleOf(attr) == c.handle {
					c.attrs = attr.Secondary
				}
			}
		}
	}
	return c
}

// compareWrites requires equal writes. Calico releases blocks in parallel, so the order of the lines is not compared
// for a step that releases several handles.
func compareWrites(t *testing.T, want []recorded, got []write) {
	t.Helper()
	var w, g []string
	for _, r := range want {
		w = append(w, r.Op+" "+r.Key+" "+r.Raw)
	}
	for _, r := range got {
		g = append(g, r.op+" "+r.path+" "+r.raw)
	}
	if want[0].Rev == 495 {
		slices.Sort(w)
		slices.Sort(g)
	}
	for i := range max(len(w), len(g)) {
		switch {
		case i >= len(g):
			t.Errorf("missing: %s", w[i])
		case i >= len(w):
			t.Errorf("surplus: %s", g[i])
		case !bytes.Equal([]byte(w[i]), []byte(g[i])):
			t.Errorf("write %d:\n want %s\n have %s", i, w[i], g[i])
		}
	}
}
