package ipam

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/manxnet/manx/datastore/model"
)

// bench is an allocator on a store in memory, with a clock that the test sets.
type bench struct {
	*testing.T
	*Allocator
	store *memory
	clock time.Time
}

func newBench(t *testing.T, objects ...*model.Object) *bench {
	x := &bench{T: t, store: newMemory(), clock: time.Unix(1_800_000_000, 0)}
	x.Allocator = New(x.store, nil, func() time.Time { return x.clock })
	create(t, x.store, nodeObject("e", "rack", "r1"), nodeObject("b", "rack", "r2"))
	create(t, x.store, objects...)
	return x
}

func configObject(c model.IPAMConfig) *model.Object { return model.NewObject(model.IPAMConfigKey, &c) }

func reservation(cidrs ...string) *model.Object {
	r := &v3.IPReservation{TypeMeta: metav1.TypeMeta{Kind: "IPReservation", APIVersion: model.APIVersion},
		ObjectMeta: metav1.ObjectMeta{Name: "r"}}
	r.Spec.ReservedCIDRs = cidrs
	return model.NewObject(model.ResourceKey(model.KindIPReservation, "r"), r)
}

// update changes a stored object.
func update[T model.Type](x *bench, key model.Key, change func(*T)) {
	x.Helper()
	o, err := x.store.Get(context.Background(), key)
	if err != nil {
		x.Fatal(err)
	}
	change(o.Value.(*T))
	if _, err := x.store.Update(context.Background(), o); err != nil {
		x.Fatal(err)
	}
}

// auto assigns n IPv4 addresses and returns them as text.
func (x *bench) auto(host, handle string, n int, change ...func(*Request)) (string, error) {
	x.Helper()
	r := Request{Host: host, Handle: handle, Num4: n, Use: workload}
	for _, c := range change {
		c(&r)
	}
	result, err := x.AutoAssign(context.Background(), r)
	if err == nil {
		err = result.Short()
	}
	var text []string
	for _, p := range append(result.V4.Addresses, result.V6.Addresses...) {
		text = append(text, p.String())
	}
	return strings.Join(text, " "), err
}

func (x *bench) mustAuto(host, handle string, n int, want string, change ...func(*Request)) {
	x.Helper()
	got, err := x.auto(host, handle, n, change...)
	if err != nil {
		x.Fatalf("assign %d for %s: %v", n, host, err)
	}
	if got != want {
		x.Errorf("assigned %s, want %s", got, want)
	}
}

// refused requires an error with all of the texts.
func (x *bench) refused(err error, texts ...string) {
	x.Helper()
	if err == nil {
		x.Fatalf("no error, want one with %q", texts)
	}
	for _, text := range texts {
		if !strings.Contains(err.Error(), text) {
			x.Errorf("error %q lacks %q", err, text)
		}
	}
}

func pools4(cidrs ...string) func(*Request) {
	return func(r *Request) {
		for _, c := range cidrs {
			r.Pools4 = append(r.Pools4, netip.MustParsePrefix(c))
		}
	}
}

func selecting(text string) func(*model.IPPoolSpec) {
	return func(p *model.IPPoolSpec) { p.NodeSelector = text }
}

func disabled(p *model.IPPoolSpec) { p.Disabled = true }

func manual(p *model.IPPoolSpec) { m := v3.Manual; p.AssignmentMode = &m }

func TestPoolSelection(t *testing.T) {
	for _, c := range []struct {
		name    string
		pools   []*model.Object
		change  func(*Request)
		want    string
		refused []string
	}{
		{name: "the first that selects the node, by name", pools: []*model.Object{
			poolObject("z", "10.0.0.0/29", 29), poolObject("c", "10.1.0.0/29", 29),
			poolObject("b", "10.2.0.0/29", 29, selecting("rack == 'r2'")),
			poolObject("e", "10.3.0.0/29", 29, disabled)}, want: "10.1.0.0/29"},
		{name: "no pool", refused: []string{"there is no IPv4 pool"}},
		{name: "none selects the node", pools: []*model.Object{
			poolObject("p", "10.0.0.0/29", 29, selecting("rack == 'r2'"))},
			refused: []string{"pool p (10.0.0.0/29): its nodeSelector \"rack == 'r2'\" does not select node e"}},
		{name: "one that is only used on request is not used",
			pools:   []*model.Object{poolObject("p", "10.0.0.0/29", 29, manual)},
			refused: []string{"assignmentMode is Manual"}},
		{name: "one that is asked for is used whatever it selects", change: pools4("10.2.0.0/29"), want: "10.2.0.0/29",
			pools: []*model.Object{
				poolObject("p", "10.0.0.0/29", 29), poolObject("q", "10.2.0.0/29", 29, selecting("rack == 'r2'"),
					manual,
					func(p *model.IPPoolSpec) {
						p.NamespaceSelector = "team == 'x'"
						p.AllowedUses = p.AllowedUses[:1]
					})}},
		{name: "pools are used in the order in which they are asked for", change: pools4("10.2.0.0/29", "10.0.0.0/29"),
			want:  "10.2.0.0/29",
			pools: []*model.Object{poolObject("p", "10.0.0.0/29", 29), poolObject("q", "10.2.0.0/29", 29)}},
		{name: "one that is asked for must be enabled", change: pools4("10.0.0.0/29"),
			refused: []string{"10.0.0.0/29", "disabled"},
			pools:   []*model.Object{poolObject("p", "10.0.0.0/29", 29, disabled), poolObject("q", "10.2.0.0/29", 29)}},
		{name: "a pool must allow the use", refused: []string{"pool p (10.0.0.0/29): its allowedUses lack Workload"},
			pools: []*model.Object{poolObject("p", "10.0.0.0/29", 29, func(p *model.IPPoolSpec) {
				p.AllowedUses = []v3.IPPoolAllowedUse{tunnel}
			})}},
		{name: "a namespace without labels does not match",
			refused: []string{"its namespaceSelector is \"team == 'x'\""},
			pools: []*model.Object{
				poolObject("p", "10.0.0.0/29", 29, func(p *model.IPPoolSpec) {
					p.NamespaceSelector = "team == 'x'"
					p.AllowedUses = p.AllowedUses[:1]
				})}},
		{name: "a namespace matches", change: func(r *Request) { r.NamespaceLabels = map[string]string{"team": "x"} },
			want: "10.0.0.0/29", pools: []*model.Object{
				poolObject("p", "10.0.0.0/29", 29, func(p *model.IPPoolSpec) {
					p.NamespaceSelector = "team == 'x'"
					p.AllowedUses = p.AllowedUses[:1]
				})}},
		{name: "the node must exist", change: func(r *Request) { r.Host = "ghost" },
			pools:   []*model.Object{poolObject("p", "10.0.0.0/29", 29)},
			refused: []string{"node ghost is not in the datastore"}},
		{name: "the use must be given", change: func(r *Request) { r.Use = "" },
			refused: []string{"Workload, Tunnel or LoadBalancer"}},
		{name: "a pool that may not be allocated from", refused: []string{"its condition Allocatable is False"},
			pools: []*model.Object{func() *model.Object {
				o := poolObject("p", "10.0.0.0/29", 29)
				o.Value.(*model.IPPool).Status = &model.IPPoolStatus{
					Conditions: []metav1.Condition{{Type: "Allocatable", Status: metav1.ConditionFalse}}}
				return o
			}()}},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := newBench(t, c.pools...)
			if c.change == nil {
				c.change = func(*Request) {}
			}
			if c.refused == nil {
				x.mustAuto("e", "h", 1, c.want, c.change)
				return
			}
			_, err := x.auto("e", "h", 1, c.change)
			x.refused(err, c.refused...)
			if s := readState(t, x.store); len(s.blocks)+len(s.handles)+len(s.affinities) > 0 {
				t.Errorf("a refused request left %v, %v, %v", s.blocks, s.handles, s.affinities)
			}
		})
	}
}

func TestBlockLimitComesBeforeBorrowing(t *testing.T) {
	x := newBench(t, poolObject("p", "10.0.0.0/27", 29))
	x.mustAuto("b", "b", 1, "10.0.0.8/29") // has room to borrow
	got, err := x.auto("e", "h", 9, func(r *Request) { r.MaxBlocks = 1 })
	x.refused(err, "limit is 1", "host:e has 1 blocks", "pool p (10.0.0.0/27)")
	if !errors.Is(err, errBlockLimit) || len(strings.Fields(got)) != 8 {
		t.Errorf("assigned %s, %v", got, err)
	}
}

func TestBlockLimit(t *testing.T) {
	for _, c := range []struct{ request, config, want int }{{0, 0, 20}, {0, 3, 3}, {5, 0, 5}, {5, 3, 3}, {2, 3, 2}} {
		if got := BlockLimit(c.request, c.config); got != c.want {
			t.Errorf("requested %d, configured %d: %d, want %d", c.request, c.config, got, c.want)
		}
	}
}

func TestStrictAffinityForbidsBorrowing(t *testing.T) {
	x := newBench(t, poolObject("p", "10.0.0.0/29", 29),
		configObject(model.IPAMConfig{StrictAffinity: true, AutoAllocateBlocks: true}))
	x.mustAuto("b", "b", 1, "10.0.0.0/29")
	_, err := x.auto("e", "h", 1)
	x.refused(err, "0 of 1 IPv4", "pool p (10.0.0.0/29)", "1 of 8 addresses in use", "strict affinity forbids")
	err = x.AssignIP(context.Background(), AddressRequest{Address: netip.MustParseAddr("10.0.0.5"), Host: "e",
		Handle: "h"})
	x.refused(err, "10.0.0.0/29", "host:b", "strict affinity")
}

func TestExhaustedPoolIsNamed(t *testing.T) {
	x := newBench(t, poolObject("p", "10.0.0.0/26", 26))
	if _, err := x.auto("b", "b", 64); err != nil {
		t.Fatal(err)
	}
	_, err := x.auto("e", "h", 1)
	x.refused(err, "pool p (10.0.0.0/26): full: 64 of 64 addresses in use")
}

// An existing configuration applies as it is: a missing auto_allocate_blocks is false.
func TestBlocksAreNotClaimedIfConfigured(t *testing.T) {
	x := newBench(t, poolObject("p", "10.0.0.0/29", 29), configObject(model.IPAMConfig{StrictAffinity: true}))
	_, err := x.auto("e", "h", 1)
	x.refused(err, "auto_allocate_blocks is off")
}

func TestReservedAddressesAreSkipped(t *testing.T) {
	x := newBench(t, poolObject("p", "10.0.0.0/28", 29), reservation("10.0.0.0/31", " 10.0.0.3 ", "nonsense",
		"10.0.0.8/29"))
	x.mustAuto("e", "h", 3, "10.0.0.2/29 10.0.0.4/29 10.0.0.5/29")
	b := readState(t, x.store).blocks[netip.MustParsePrefix("10.0.0.0/29")]
	if got := b.Unallocated; len(got) != 5 || got[0] != 0 || got[1] != 1 || got[2] != 3 {
		t.Errorf("reserved addresses lost their place in the queue: %v", got)
	}
	if err := x.AssignIP(context.Background(), AddressRequest{Address: netip.MustParseAddr("10.0.0.1"), Host: "e",
		Handle: "h"}); err != nil {
		t.Errorf("a reserved address can be requested: %v", err)
	}
	_, err := x.auto("e", "h", 3)
	x.refused(err, "2 of 3 IPv4", "full: 6 of 16 addresses in use or cooling down (37%), 11 reserved")
}

// What the host has in use is not assigned, whatever a restored datastore lacks.
func TestAddressesInUseAreSkipped(t *testing.T) {
	x := newBench(t, poolObject("p", "10.0.0.0/29", 29))
	used := func(r *Request) {
		r.InUse = func(a netip.Addr) bool {
			return a == netip.MustParseAddr("10.0.0.0") || a == netip.MustParseAddr("10.0.0.2")
		}
	}
	got, err := x.auto("e", "h", 3, used)
	if err != nil || got != "10.0.0.1/29 10.0.0.3/29 10.0.0.4/29" {
		t.Errorf("%s, %v", got, err)
	}
	request := AddressRequest{Address: netip.MustParseAddr("10.0.0.2"), Host: "e", Handle: "h",
		InUse: func(netip.Addr) bool { return true }}
	if err := x.AssignIP(context.Background(), request); !errors.Is(err, errInUse) {
		t.Errorf("on request: %v", err)
	}
	request.InUse = func(netip.Addr) bool { return false }
	if err := x.AssignIP(context.Background(), request); err != nil {
		t.Errorf("not in use any more: %v", err)
	}
	_, err = x.auto("e", "h", 4, used)
	x.refused(err, "3 of 4 IPv4")
}

func TestUnusedBlockIsTakenOverAfterAMinute(t *testing.T) {
	x := newBench(t, poolObject("p", "10.0.0.0/29", 29),
		configObject(model.IPAMConfig{StrictAffinity: true, AutoAllocateBlocks: true}))
	x.mustAuto("b", "b", 1, "10.0.0.0/29")
	if _, err := x.ReleaseByHandle(context.Background(), "b"); err != nil {
		t.Fatal(err)
	}
	x.clock = x.clock.Add(59 * time.Second)
	_, err := x.auto("e", "h", 1)
	x.refused(err, "0 of 1")
	x.clock = x.clock.Add(2 * time.Second)
	x.mustAuto("e", "h", 1, "10.0.0.0/29")
	if s := readState(t, x.store); len(s.affinities) != 1 {
		t.Errorf("affinities: %v", s.affinities)
	}
}

func TestEmptyBlockOfADeselectedPoolIsGivenUp(t *testing.T) {
	x := newBench(t, poolObject("p", "10.0.0.0/28", 29), poolObject("q", "10.1.0.0/29", 29))
	x.mustAuto("e", "empty", 8, "10.0.0.0/29 10.0.0.1/29 10.0.0.2/29 10.0.0.3/29 10.0.0.4/29 10.0.0.5/29 10.0.0.6/29 "+
		"10.0.0.7/29")
	x.mustAuto("e", "used", 1, "10.0.0.8/29")
	if _, err := x.ReleaseByHandle(context.Background(), "empty"); err != nil {
		t.Fatal(err)
	}
	update(x, model.ResourceKey(model.KindIPPool, "p"), func(p *model.IPPool) { p.Spec.NodeSelector = "rack == 'r2'" })
	x.mustAuto("e", "h", 1, "10.1.0.0/29")
	s := readState(t, x.store)
	if s.blocks[netip.MustParsePrefix("10.0.0.0/29")] != nil || s.blocks[netip.MustParsePrefix("10.0.0.8/29")] == nil {
		t.Errorf("blocks: %v", s.blocks)
	}
	// The other one is deleted with the release of its last address.
	if _, err := x.ReleaseByHandle(context.Background(), "used"); err != nil {
		t.Fatal(err)
	}
	if s := readState(t, x.store); s.blocks[netip.MustParsePrefix("10.0.0.8/29")] != nil || len(s.affinities) != 1 {
		t.Errorf("blocks: %v, affinities: %v", s.blocks, s.affinities)
	}
}

func TestFamiliesSucceedApart(t *testing.T) {
	x := newBench(t, poolObject("four", "10.0.0.0/29", 29), poolObject("six", "fd00::/126", 126))
	result, err := x.AutoAssign(context.Background(), Request{Host: "e", Handle: "h", Num4: 1, Num6: 5, Use: workload})
	if err != nil {
		t.Fatal(err)
	}
	if result.V4.Short() != nil || len(result.V6.Addresses) != 4 {
		t.Errorf("result %v", result)
	}
	x.refused(result.Short(), "4 of 5 IPv6", "pool six (fd00::/126): full: 4 of 4")

	// IPv6 is not tried if IPv4 addresses cannot be assigned.
	update(x, model.ResourceKey(model.KindIPPool, "four"), func(p *model.IPPool) { p.Spec.Disabled = true })
	before := x.store.revision
	if _, err = x.AutoAssign(context.Background(), Request{Host: "e", Handle: "i", Num4: 1, Num6: 1,
		Use: workload}); !errors.Is(err, errNoPool) {
		t.Errorf("error %v", err)
	}
	if x.store.revision != before {
		t.Error("something was written")
	}
}

func TestBlocksOfAnotherSizeAreNotOverlapped(t *testing.T) {
	x := newBench(t, poolObject("p", "10.0.0.0/28", 28))
	x.mustAuto("b", "b", 1, "10.0.0.0/28")
	update(x, model.ResourceKey(model.KindIPPool, "p"), func(p *model.IPPool) { p.Spec.BlockSize = 30 })
	x.mustAuto("e", "h", 1, "10.0.0.1/28")
}

func TestStaleAffinityIsDropped(t *testing.T) {
	x := newBench(t, poolObject("p", "10.0.0.0/28", 29))
	x.mustAuto("b", "b", 1, "10.0.0.0/29")
	key := model.AffinityKey(Host("e").affinity(netip.MustParsePrefix("10.0.0.0/29")))
	create(t, x.store, model.NewObject(key, &model.BlockAffinity{State: model.StatePending}))
	x.mustAuto("e", "h", 1, "10.0.0.8/29")
	if _, err := x.store.Get(context.Background(), key); !errors.Is(err, model.ErrNotFound) {
		t.Errorf("the affinity to the other host's block is left: %v", err)
	}
}

func TestReleaseChecksWhoHasTheAddress(t *testing.T) {
	x := newBench(t, poolObject("p", "10.0.0.0/28", 29))
	x.mustAuto("e", "h", 3, "10.0.0.0/29 10.0.0.1/29 10.0.0.2/29")
	first := netip.MustParseAddr("10.0.0.0")
	attrs, err := x.GetAssignmentAttributes(context.Background(), first)
	if err != nil {
		t.Fatal(err)
	}
	old := attrs.Sequence - 1
	for _, c := range []struct {
		name    string
		release []Release
		refused string
		missing int
		freed   int
	}{
		{"wrong handle", []Release{{Address: first, Handle: "other"}}, `its handle is "h", not "other"`, 0, 0},
		{"wrong sequence number", []Release{{Address: first, Sequence: &old}}, "sequence number", 0, 0},
		{"one wrong spoils its block", []Release{{Address: first, Handle: "other"}, {Address: first.Next()}}, "handle",
			0, 0},
		{"free already", []Release{{Address: netip.MustParseAddr("10.0.0.7")}}, "", 1, 0},
		{"block does not exist", []Release{{Address: netip.MustParseAddr("10.0.0.9")}}, "", 1, 0},
		{"no pool", []Release{{Address: netip.MustParseAddr("10.9.0.9")}}, "", 1, 0},
		{"no address", []Release{{}}, "missing", 0, 0},
		{"right", []Release{{Address: first, Handle: "h", Sequence: &attrs.Sequence}, {Address: first}}, "", 0, 1},
		{"again", []Release{{Address: first, Handle: "h"}}, "", 1, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := x.ReleaseIPs(context.Background(), c.release...)
			if c.refused != "" {
				x.refused(err, c.refused)
			} else if err != nil {
				t.Error(err)
			}
			if len(got.NotAssigned) != c.missing || len(got.Addresses) != c.freed {
				t.Errorf("released %v, not assigned %v", got.Addresses, got.NotAssigned)
			}
		})
	}
	// Addresses of a disabled or deleted pool can be released.
	update(x, model.ResourceKey(model.KindIPPool, "p"), func(p *model.IPPool) { p.Spec.Disabled = true })
	if got, err := x.ReleaseIPs(context.Background(), Release{Address: netip.MustParseAddr("10.0.0.1")}); err != nil ||
		len(got.Addresses) != 1 {
		t.Errorf("disabled pool: %v, %v", got, err)
	}
	if _, err := x.store.Delete(context.Background(), model.ResourceKey(model.KindIPPool, "p"), 0); err != nil {
		t.Fatal(err)
	}
	if got, err := x.ReleaseIPs(context.Background(), Release{Address: netip.MustParseAddr("10.0.0.2")}); err != nil ||
		len(got.Addresses) != 1 {
		t.Errorf("no pool: %v, %v", got, err)
	}
}

func TestReleasedAddressCoolsDown(t *testing.T) {
	seconds := 30
	x := newBench(t, poolObject("p", "10.0.0.0/30", 30),
		configObject(model.IPAMConfig{AutoAllocateBlocks: true, IPCooldownSeconds: &seconds}))
	x.mustAuto("e", "h", 4, "10.0.0.0/30 10.0.0.1/30 10.0.0.2/30 10.0.0.3/30")
	addr := netip.MustParseAddr("10.0.0.1")
	if got, err := x.ReleaseIPs(context.Background(), Release{Address: addr}); err != nil || len(got.Addresses) != 1 {
		t.Fatal(got, err)
	}
	if _, err := x.GetAssignmentAttributes(context.Background(), addr); !errors.As(err, new(*CoolingError)) {
		t.Errorf("attributes of a cooling address: %v", err)
	}
	if got, err := x.ReleaseIPs(context.Background(), Release{Address: addr}); err != nil || len(got.NotAssigned) != 1 {
		t.Errorf("released again: %v, %v", got, err)
	}
	err := x.AssignIP(context.Background(), AddressRequest{Address: addr, Host: "e"})
	x.refused(err, "10.0.0.1 is already assigned", "cools down")
	x.clock = x.clock.Add(30 * time.Second)
	_, err = x.auto("e", "i", 1)
	x.refused(err, "4 of 4 addresses in use")
	x.clock = x.clock.Add(time.Second)
	x.mustAuto("e", "i", 1, "10.0.0.1/30")
}

// A block without owner ends with its last address, also if the correction of a handle is the first to see that the
// address has cooled down. It would stay for ever otherwise: without addresses nothing collects it, and no host owns
// it.
func TestBlockWithoutOwnerEnds(t *testing.T) {
	seconds := 30
	for name, end := range map[string]func(*bench){
		"corrected handle": func(x *bench) {
			create(t, x.store, model.NewObject(model.HandleKey("h"), &model.Handle{Block: map[string]int{
				"10.0.0.0/30": 2}}))
			if err := x.SettleHandle(t.Context(), "h"); err != nil {
				t.Error(err)
			}
		},
		"collection": func(x *bench) {
			if _, err := x.CollectCold(t.Context(), netip.MustParsePrefix("10.0.0.0/30")); err != nil {
				t.Error(err)
			}
		},
		"collection of an empty one": func(x *bench) { // as older versions left it
			o, err := x.store.Get(t.Context(), model.BlockKey(netip.MustParsePrefix("10.0.0.0/30")))
			if err != nil {
				t.Fatal(err)
			}
			collect(o.Value.(*model.Block), x.clock, 0)
			if _, err := x.store.Update(t.Context(), o); err != nil {
				t.Fatal(err)
			}
			if _, err := x.CollectCold(t.Context(), netip.MustParsePrefix("10.0.0.0/30")); err != nil {
				t.Error(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			x := newBench(t, poolObject("p", "10.0.0.0/30", 30),
				configObject(model.IPAMConfig{AutoAllocateBlocks: true, IPCooldownSeconds: &seconds}))
			x.mustAuto("e", "h", 1, "10.0.0.0/30")
			cidr := netip.MustParsePrefix("10.0.0.0/30")
			if err := x.ReleaseAffinity(t.Context(), Host("e"), cidr, false); err != nil {
				t.Fatal(err)
			}
			if _, err := x.ReleaseByHandle(t.Context(), "h"); err != nil {
				t.Fatal(err)
			}
			x.clock = x.clock.Add(time.Minute)
			end(x)
			if s := readState(t, x.store); len(s.blocks) > 0 {
				t.Errorf("left: %v", s.blocks)
			}
		})
	}
}

func TestAttributesAreThoseOfEnabledPools(t *testing.T) {
	x := newBench(t, poolObject("p", "10.0.0.0/30", 30))
	x.mustAuto("e", "h", 1, "10.0.0.0/30", func(r *Request) { r.Attrs = map[string]string{"pod": "p"} })
	got, err := x.GetAssignmentAttributes(context.Background(), netip.MustParseAddr("10.0.0.0"))
	if err != nil || got.Handle != "h" || got.Attrs["pod"] != "p" {
		t.Errorf("%v, %v", got, err)
	}
	for _, free := range []string{"10.0.0.1", "10.1.0.0"} {
		if _, err := x.GetAssignmentAttributes(context.Background(), netip.MustParseAddr(free)); !errors.Is(err,
			model.ErrNotFound) {
			t.Errorf("%s: %v", free, err)
		}
	}
	update(x, model.ResourceKey(model.KindIPPool, "p"), func(p *model.IPPool) { p.Spec.Disabled = true })
	if _, err := x.GetAssignmentAttributes(context.Background(), netip.MustParseAddr("10.0.0.0")); !errors.Is(err,
		model.ErrNotFound) {
		t.Errorf("in a disabled pool: %v", err)
	}
}

func TestUtilization(t *testing.T) {
	x := newBench(t, poolObject("p", "10.0.0.0/28", 29), poolObject("six", "fd00::/64", 122),
		poolObject("gone", "10.5.0.0/30", 30), reservation("10.0.0.6/31", "fd00::/65"))
	x.mustAuto("e", "h", 2, "10.0.0.0/29 10.0.0.1/29", pools4("10.0.0.0/28"))
	x.mustAuto("e", "h", 1, "10.5.0.0/30", pools4("10.5.0.0/30"))
	if _, err := x.store.Delete(context.Background(), model.ResourceKey(model.KindIPPool, "gone"), 0); err != nil {
		t.Fatal(err)
	}
	usage, err := x.Utilization(context.Background())
	if err != nil || len(usage) != 3 {
		t.Fatalf("%v, %v", usage, err)
	}
	p, six, orphans := usage[0], usage[1], usage[2]
	if p.Name != "p" || p.Capacity.String() != "16" || p.InUse != 2 || p.Reserved.String() != "2" ||
		len(p.Blocks) != 1 || p.Blocks[0] != (BlockUsage{netip.MustParsePrefix("10.0.0.0/29"), "host:e", 8, 2, 2}) {
		t.Errorf("pool p: %+v", p)
	}
	if six.Capacity.String() != "18446744073709551616" || six.Reserved.String() != "9223372036854775808" {
		t.Errorf("pool six: %+v", six)
	}
	if p.ReservedInUse != 0 || p.Free().String() != "12" {
		t.Errorf("pool p: %s free, %+v", p.Free(), p)
	}
	if orphans.Name != "" || orphans.InUse != 1 || len(orphans.Blocks) != 1 {
		t.Errorf("orphans: %+v", orphans)
	}
}

// An address that is reserved while it is in use counts once.
func TestUtilizationOfReservedInUse(t *testing.T) {
	x := newBench(t, poolObject("p", "10.0.0.0/29", 29), reservation("10.0.0.0/30"))
	ip := netip.MustParseAddr("10.0.0.1")
	if err := x.AssignIP(context.Background(), AddressRequest{Address: ip, Host: "e", Handle: "h"}); err != nil {
		t.Fatal(err)
	}
	usage, err := x.Utilization(context.Background())
	if err != nil || len(usage) != 1 {
		t.Fatalf("%v, %v", usage, err)
	}
	if u := usage[0]; u.InUse != 1 || u.ReservedInUse != 1 || u.Free().String() != "4" {
		t.Errorf("%s free, %+v", u.Free(), u)
	}
}

// A damaged block stays unchanged and is reported; the other blocks are used.
func TestDamagedBlockIsPassedOver(t *testing.T) {
	x := newBench(t, poolObject("p", "10.0.0.0/28", 29))
	x.mustAuto("e", "h", 1, "10.0.0.0/29")
	path := "/calico/ipam/v2/assignment/ipv4/block/10.0.0.0-29"
	e := x.store.entries[path]
	for _, raw := range []string{"", "{", `{"cidr":"10.0.0.0/29","allocations":[0],"unallocated":[]}`,
		strings.Replace(string(e.raw), "[1,2", "[99,2", 1)} {
		x.store.entries[path] = entry{e.key, []byte(raw), e.revision}
		got, err := x.auto("e", "i", 1)
		if err != nil || !strings.HasPrefix(got, "10.0.0.") || !strings.HasSuffix(got, "/29") || got == "10.0.0.0/29" {
			t.Errorf("assigned %s, %v", got, err)
		}
		_, err = x.ReleaseByHandle(context.Background(), "h")
		x.refused(err, "block 10.0.0.0/29", "repair or delete")
		if string(x.store.entries[path].raw) != raw {
			t.Error("the damaged block was written")
		}
	}
}

// Unknown fields that a newer version keeps in a block, an affinity or a handle survive.
func TestUnknownFieldsSurvive(t *testing.T) {
	x := newBench(t, poolObject("p", "10.0.0.0/28", 29))
	x.mustAuto("e", "h", 1, "10.0.0.0/29")
	for path, e := range x.store.entries {
		if strings.HasPrefix(path, "/calico/ipam/v2/") {
			raw := strings.Replace(string(e.raw), `{`, `{"future":{"x":18446744073709551615},`, 1)
			raw = strings.Replace(raw, `{"handle_id"`, `{"futureAttribute":"x","handle_id"`, 1)
			x.store.entries[path] = entry{e.key, []byte(raw), e.revision}
		}
	}
	x.mustAuto("e", "h", 1, "10.0.0.1/29")
	if err := x.ReleaseAffinity(context.Background(), Host("e"), netip.MustParsePrefix("10.0.0.0/29"),
		true); !errors.Is(err, ErrNotEmpty) {
		t.Errorf("error %v", err)
	}
	for path, e := range x.store.entries {
		if strings.HasPrefix(path, "/calico/ipam/v2/") &&
			!strings.Contains(string(e.raw), `"future":{"x":18446744073709551615}`) {
			t.Errorf("%s: %s", path, e.raw)
		}
	}
	if block := string(x.store.entries["/calico/ipam/v2/assignment/ipv4/block/10.0.0.0-29"].raw); !strings.Contains(
		block, `"futureAttribute":"x"`) {
		t.Errorf("block: %s", block)
	}
}

// conflicting is a store in which each write of a block conflicts with another one.
type conflicting struct {
	Store
	updates int
	cancel  func()
}

func (c *conflicting) Update(ctx context.Context, o *model.Object) (*model.Object, error) {
	if o.Key.Kind != model.KindIPAMBlock {
		return c.Store.Update(ctx, o)
	}
	if c.updates++; c.updates == 5 && c.cancel != nil {
		c.cancel()
	}
	return nil, model.ErrConflict
}

func TestConflictsEndAfterAHundredTriesOrWithTheContext(t *testing.T) {
	for _, withCancel := range []bool{false, true} {
		x := newBench(t, poolObject("p", "10.0.0.0/28", 29))
		x.mustAuto("e", "other", 1, "10.0.0.0/29")
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		c := &conflicting{Store: x.store}
		if withCancel {
			c.cancel = cancel
		}
		_, err := New(c, nil, nil).AutoAssign(ctx, Request{Host: "e", Handle: "h", Num4: 1, Use: workload})
		if withCancel {
			if !errors.Is(err, context.Canceled) || c.updates > 6 {
				t.Errorf("%d tries, then %v", c.updates, err)
			}
		} else {
			x.refused(err, "block 10.0.0.0/29", "gave up after 100 tries", "host e")
		}
		if s := readState(t, x.store); s.handles["h"] != nil {
			t.Errorf("handle h is left with %v", s.handles["h"].Block)
		}
	}
}

func TestWrongArgumentsAreRefused(t *testing.T) {
	x := newBench(t, poolObject("p", "10.0.0.0/28", 29))
	for _, r := range []Request{{Use: workload}, {Host: "a/b", Use: workload},
		{Host: "e", Handle: "x/y", Use: workload}, {Host: "e", Num4: -1, Use: workload}, {Host: "e", Use: "Other"}} {
		if _, err := x.AutoAssign(context.Background(), r); err == nil {
			t.Errorf("%+v is accepted", r)
		}
	}
	for _, r := range []AddressRequest{
		{Host: "e"}, {Address: netip.MustParseAddr("10.0.0.1")}, {Address: netip.MustParseAddr("10.1.0.1"), Host: "e"},
		{Address: netip.MustParseAddr("10.0.0.1"), Host: "e", Use: loadBalancer},
	} {
		if err := x.AssignIP(context.Background(), r); err == nil {
			t.Errorf("%+v is accepted", r)
		}
	}
	if _, err := x.ReleaseByHandle(context.Background(), ""); err == nil {
		t.Error("release of no handle is accepted")
	}
	if _, err := x.ReleaseByHandle(context.Background(), "unknown"); !errors.Is(err, model.ErrNotFound) {
		t.Errorf("unknown handle: %v", err)
	}
}

// An interrupted claim or release is completed by the next assignment of the host, in the order that shows the
// operation to all others that work on the same block.
func TestInterruptedClaimIsCompleted(t *testing.T) {
	const aff, block = "/calico/ipam/v2/host/e/ipv4/block/10.0.0.0-29",
		"/calico/ipam/v2/assignment/ipv4/block/10.0.0.0-29"
	for _, c := range []struct {
		name  string
		state model.AffinityState
		block bool
		want  string // the writes before the address is assigned
	}{
		{"announced only", model.StatePending, false, "update " + aff + " pending, create " + block + ", update " +
			aff + " confirmed"},
		{"block made, not confirmed", model.StatePending, true, "update " + aff + " pending, update " + block +
			", update " + aff + " confirmed"},
		{"release begun", model.StatePendingDeletion, true, "update " + aff + " pending, update " + block +
			", update " + aff + " confirmed"},
		{"release nearly done", model.StatePendingDeletion, false, "update " + aff + " pending, create " + block +
			", update " + aff + " confirmed"},
		{"confirmed", model.StateConfirmed, true, ""},
		{"written by a very old version", "", true, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := newBench(t, poolObject("p", "10.0.0.0/28", 29))
			cidr := netip.MustParsePrefix("10.0.0.0/29")
			create(t, x.store, model.NewObject(model.AffinityKey(Host("e").affinity(cidr)),
				&model.BlockAffinity{State: c.state}))
			if c.block {
				create(t, x.store, model.NewObject(model.BlockKey(cidr), newBlock(cidr, "host:e", x.clock)))
			}
			x.store.history = nil
			x.mustAuto("e", "h", 1, "10.0.0.0/29")
			var writes []string
			for _, w := range x.store.history[:len(x.store.history)-2] { // the last two are handle and block
				text := w.op + " " + w.path
				for _, state := range []string{"pending", "confirmed"} {
					if strings.Contains(w.raw, `"state":"`+state+`"`) {
						text += " " + state
					}
				}
				writes = append(writes, text)
			}
			if got := strings.Join(writes, ", "); got != c.want {
				t.Errorf("writes\n have %s\n want %s", got, c.want)
			}
			steps := uint64(1)
			if c.block && c.want != "" {
				steps = 2
			}
			if got := readState(t, x.store).blocks[cidr].SequenceNumber - uint64(x.clock.UnixNano()); got != steps {
				t.Errorf("the sequence number grew by %d, want %d", got, steps)
			}
		})
	}
}

// Another pod of the same virtual machine takes its addresses over, and a release that was decided before fails.
func TestSetOwner(t *testing.T) {
	store := newMemory()
	create(t, store, poolObject("p", "10.0.0.0/27", 29), nodeObject("a"), nodeObject("b"))
	a := New(store, nil, nil)
	for _, do := range list(assign("a", "vm", 9), assign("a", "other", 2)) {
		if err := do(a); err != nil {
			t.Fatal(err)
		}
	}
	before, err := a.AllocationsOf(t.Context(), "vm")
	if err != nil || len(before) != 9 {
		t.Fatal(before, err)
	}
	taken, err := a.SetOwner(t.Context(), "vm", map[string]string{"node": "b", "pod": "next"})
	if err != nil || len(taken) != 9 || taken[0].Bits() != 29 {
		t.Errorf("taken over: %v, %v", taken, err)
	}
	after, err := a.AllocationsOf(t.Context(), "vm")
	if err != nil || len(after) != 9 {
		t.Fatal(after, err)
	}
	for i, x := range after {
		if x.Attrs["pod"] != "next" || x.Address != before[i].Address || x.Address != taken[i].Addr() {
			t.Errorf("%+v was %+v", x, before[i])
		}
	}
	if _, err := a.ReleaseIPs(t.Context(), Release{Address: before[0].Address, Handle: "vm",
		Sequence: &before[0].Sequence}); !errors.As(err, new(*MismatchError)) {
		t.Errorf("a release that was decided before: %v", err)
	}
	if none, err := a.SetOwner(t.Context(), "none", nil); err != nil || len(none) > 0 {
		t.Errorf("a handle without addresses: %v, %v", none, err)
	}
	s := readState(t, store)
	s.checkHandles(t, func(string) bool { return false })
	if len(s.has["other"]) == 0 {
		t.Error("another handle lost its addresses")
	}
	releaseEverything(t, store, nil)
}
