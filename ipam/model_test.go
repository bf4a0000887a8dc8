package ipam

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/manxnet/manx/datastore/etcd/etcdtest"
	"github.com/manxnet/manx/datastore/kubernetes"
	"github.com/manxnet/manx/datastore/kubernetes/form"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/integration/kubernetes/apiserver"
)

// The model: operations of many hosts in a random order. Before or after any call to the datastore the process may
// die, or another host may do an operation. The model knows which address must belong to which handle, from the answers
// alone. A seed repeats a run on the store in memory.

const (
	modelHosts = 6
	// modelEnv is the number of assignments and releases of a long run, modelSeedEnv its seed.
	modelEnv     = "MANX_IPAM_OPERATIONS"
	modelSeedEnv = "MANX_IPAM_SEED"
)

// modelRun is one run.
type modelRun struct {
	t     *testing.T
	store Store
	rng   *rand.Rand
	now   time.Time
	// live has the addresses that were assigned, and that nobody began to release.
	live map[netip.Addr]string
	// loose are handles of operations that died, or that another operation met: what they have is not known, and what
	// they count may be too much.
	loose   map[string]bool
	touched []string // the handles of the operations under way

	trace []string // the last operations

	handles, counted, deaths, meetings, refused int
	strict                                      bool
}

func newModelRun(t *testing.T, store Store, seed uint64) *modelRun {
	m := &modelRun{t: t, store: store, rng: rand.New(rand.NewPCG(seed, 7)), live: map[netip.Addr]string{},
		loose: map[string]bool{}, now: time.Unix(1_800_000_000, 0)}
	create(t, store, poolObject("four", "10.7.0.0/26", 29), poolObject("six", "fd00:7::/123", 125),
		configObject(model.IPAMConfig{AutoAllocateBlocks: true}))
	return m
}

// createNodes creates the nodes, where they are no objects of Kubernetes.
func (m *modelRun) createNodes() *modelRun {
	for i := range modelHosts {
		create(m.t, m.store, nodeObject(modelHost(i)))
	}
	return m
}

func modelHost(i int) string { return fmt.Sprintf("h%d", i) }

func (m *modelRun) clock() time.Time { return m.now }

func (m *modelRun) host() string { return modelHost(m.rng.IntN(modelHosts)) }

// step does one operation, which may die or meet another one at any of its calls.
func (m *modelRun) step() {
	m.now = m.now.Add(time.Duration(m.rng.IntN(30)) * time.Second)
	m.touched = nil
	f := &faulty{Store: m.store}
	died, met := false, false
	switch m.rng.IntN(5) {
	case 0:
		f.at, died = 1+m.rng.IntN(14), true
		f.fault = fault{crash: true}
		if m.rng.IntN(2) == 0 {
			f.fault = fault{crashed: true}
		}
	case 1:
		f.at = 1 + m.rng.IntN(14)
		f.fault = fault{concurrently: func(s Store) error {
			met = true
			m.operation(New(s, nil, m.clock), m.host(), func() bool { return true })
			return nil
		}}
	}
	host := m.host()
	m.operation(New(f, nil, m.clock), host, func() bool { return f.dead || met })
	switch {
	case died && f.dead:
		m.note("that died at call %d of %s", f.at, host)
		m.deaths++
		m.loosen()
		m.restart(host)
	case met:
		m.note("that met the one before it at call %d", f.at)
		m.meetings++
		m.loosen()
	}
}

func (m *modelRun) loosen() {
	for _, h := range m.touched {
		m.loose[h] = true
	}
}

// restart does what a manxd of the host does when it starts.
func (m *modelRun) restart(host string) {
	if _, err := New(m.store, nil, m.clock).CountHandles(m.t.Context(), host,
		func(string) bool { return false }); err != nil {
		m.t.Errorf("after a crash: %v", err)
	}
}

// operation does one operation. disturbed reports whether it died or met another one.
func (m *modelRun) operation(a *Allocator, host string, disturbed func() bool) {
	ctx := m.t.Context()
	switch n := m.rng.IntN(100); {
	case n < 35:
		m.assign(a, host, disturbed)
	case n < 42:
		m.assignExact(a, host, disturbed)
	case n < 75:
		m.release(a, host, disturbed)
	case n < 79:
		err := a.ReleaseHostAffinities(ctx, Host(host), m.rng.IntN(2) == 0)
		m.check(err, disturbed)
		m.note("release affinities of %s: %v", host, err)
	case n < 83:
		blocks := slices.Collect(maps.Keys(readState(m.t, m.store).blocks))
		slices.SortFunc(blocks, netip.Prefix.Compare)
		if len(blocks) > 0 {
			cidr := blocks[m.rng.IntN(len(blocks))]
			m.check(a.ReleaseAffinity(ctx, Host(host), cidr, m.rng.IntN(2) == 0), disturbed)
			m.check(a.SettleAffinity(ctx, Host(host).affinity(cidr)), disturbed)
			m.note("release and settle affinity of %s to %s", host, cidr)
		}
	case n < 87:
		_, _, err := a.ahead(ctx, Request{Host: host, Num4: 1, Use: workload}, IPv4, lowWater)
		m.check(err, disturbed)
		m.note("claim ahead for %s: %v", host, err)
	case n < 91:
		m.configure(a.store, disturbed)
	case n < 96:
		m.pools(a, disturbed)
	default:
		if loose := slices.Sorted(maps.Keys(m.loose)); len(loose) > 0 {
			handle := loose[m.rng.IntN(len(loose))]
			m.check(a.SettleHandle(ctx, handle), disturbed)
			m.note("settle handle %s", handle)
		}
	}
}

// note remembers an operation, for the report of a failure.
func (m *modelRun) note(format string, args ...any) {
	if m.trace = append(m.trace, fmt.Sprintf(format, args...)); len(m.trace) > 200 {
		m.trace = m.trace[100:]
	}
}

// check accepts the errors that an operation may have for its own reasons.
func (m *modelRun) check(err error, disturbed func() bool) {
	switch {
	case err == nil:
	case isShort(err), errors.Is(err, ErrAssigned), errors.Is(err, errBlockLimit), errors.Is(err, ErrNotEmpty),
		errors.Is(err, model.ErrNotFound), errors.Is(err, errTaken), errors.Is(err, errNoPool):
		m.refused++
	case !disturbed():
		m.t.Errorf("operation: %v", err)
	}
}

func (m *modelRun) newHandle() string {
	m.handles++
	return fmt.Sprintf("m.%d", m.handles)
}

func (m *modelRun) assign(a *Allocator, host string, disturbed func() bool) {
	m.counted++
	handle := m.newHandle()
	if m.rng.IntN(5) == 0 {
		if h, _ := m.liveHandle(); h != "" {
			handle = h
		}
	}
	m.touched = append(m.touched, handle)
	r := Request{Host: host, Handle: handle, Attrs: map[string]string{"node": host}, Num4: 1 + m.rng.IntN(3),
		Num6: m.rng.IntN(2), Use: workload}
	var waits []func(context.Context) error
	if m.rng.IntN(2) == 0 {
		r.Later = func(wait func(context.Context) error) { waits = append(waits, wait) }
	}
	got, err := a.AutoAssign(m.t.Context(), r)
	for _, wait := range waits {
		err = errors.Join(err, wait(m.t.Context()))
	}
	if err == nil {
		err = got.Short()
	}
	m.check(err, disturbed)
	m.note("assign to %s on %s, beside %t: %v, %v", handle, host, r.Later != nil, got, err)
	for _, p := range append(got.V4.Addresses, got.V6.Addresses...) {
		m.took(p.Addr(), handle)
		if m.strict && !disturbed() {
			m.wantOwnBlock(p.Masked(), host)
		}
	}
}

func (m *modelRun) wantOwnBlock(block netip.Prefix, host string) {
	o, err := m.store.Get(m.t.Context(), model.BlockKey(block))
	if err != nil || ownerOf(o.Value.(*model.Block)) != Host(host).String() {
		m.t.Errorf("strict affinity, and %s got an address of block %s of another host: %v", host, block, err)
	}
}

func (m *modelRun) took(a netip.Addr, handle string) {
	if has := m.live[a]; has != "" {
		m.t.Errorf("%s is assigned twice: to %s and to %s", a, has, handle)
	}
	m.live[a] = handle
}

func (m *modelRun) assignExact(a *Allocator, host string, disturbed func() bool) {
	m.counted++
	handle, addr := m.newHandle(), netip.AddrFrom4([4]byte{10, 7, 0, byte(m.rng.IntN(64))})
	m.touched = append(m.touched, handle)
	err := a.AssignIP(m.t.Context(), AddressRequest{Address: addr, Host: host, Handle: handle})
	m.note("assign %s to %s on %s: %v", addr, handle, host, err)
	if err == nil {
		m.took(addr, handle)
	} else if s := readPool(m.t, m.store, "four"); s.Spec.Disabled || m.strict {
		err = errNoPool
	}
	m.check(err, disturbed)
}

// liveHandle returns any handle, and its addresses. It returns none that an operation under way is about: a release
// would take what that one has not answered yet.
func (m *modelRun) liveHandle() (handle string, addrs []netip.Addr) {
	by := map[string][]netip.Addr{}
	for a, h := range m.live {
		if !slices.Contains(m.touched, h) {
			by[h] = append(by[h], a)
		}
	}
	names := slices.Sorted(maps.Keys(by))
	if len(names) == 0 {
		return "", nil
	}
	handle = names[m.rng.IntN(len(names))]
	addrs = by[handle]
	slices.SortFunc(addrs, netip.Addr.Compare)
	return handle, addrs
}

func (m *modelRun) release(a *Allocator, host string, disturbed func() bool) {
	handle, addrs := m.liveHandle()
	if handle == "" {
		return
	}
	m.counted++
	m.touched = append(m.touched, handle)
	for _, x := range addrs {
		delete(m.live, x)
	}
	wasLoose := m.loose[handle]
	var got []netip.Addr
	var err error
	switch m.rng.IntN(3) {
	case 0:
		got, err = a.ReleaseByHandle(m.t.Context(), handle)
	case 1:
		got, err = a.ReleaseFromHost(m.t.Context(), host, handle)
	default:
		var list []Release
		for _, x := range addrs {
			list = append(list, Release{Address: x, Handle: handle})
		}
		var done Released
		done, err = a.ReleaseIPs(m.t.Context(), list...)
		got = done.Addresses
	}
	m.check(err, disturbed)
	m.note("release %s with %v from %s: %v, %v", handle, addrs, host, got, err)
	slices.SortFunc(got, netip.Addr.Compare)
	if !disturbed() && !wasLoose && !slices.Equal(got, addrs) {
		m.t.Errorf("released %v of handle %s, which had %v: %v", got, handle, addrs, err)
	}
}

// configure changes the settings of IPAM.
func (m *modelRun) configure(store Store, disturbed func() bool) {
	o, err := m.store.Get(m.t.Context(), model.IPAMConfigKey)
	if err == nil {
		o = o.Clone()
		c := o.Value.(*model.IPAMConfig)
		c.StrictAffinity, c.MaxBlocksPerHost = m.rng.IntN(3) == 0, 0
		if c.StrictAffinity {
			c.MaxBlocksPerHost = 4 * m.rng.IntN(2)
		}
		seconds := 20 * m.rng.IntN(2)
		c.IPCooldownSeconds = &seconds
		_, err = store.Update(m.t.Context(), o)
	}
	m.check(err, disturbed)
	m.readStrict()
}

func (m *modelRun) readStrict() {
	if o, err := m.store.Get(m.t.Context(), model.IPAMConfigKey); err == nil {
		m.strict = o.Value.(*model.IPAMConfig).StrictAffinity
	}
}

func readPool(t *testing.T, store Store, name string) *model.IPPool {
	t.Helper()
	o, err := store.Get(t.Context(), model.ResourceKey(model.KindIPPool, name))
	if err != nil {
		t.Fatal(err)
	}
	return o.Clone().Value.(*model.IPPool)
}

// pools disables or enables a pool, or releases the blocks of one, as for its deletion.
func (m *modelRun) pools(a *Allocator, disturbed func() bool) {
	ctx := m.t.Context()
	if m.rng.IntN(3) == 0 {
		_, err := a.ReleasePoolAffinities(ctx, netip.MustParsePrefix("10.7.0.0/26"))
		m.check(err, disturbed)
		return
	}
	o, err := m.store.Get(ctx, model.ResourceKey(model.KindIPPool, "four"))
	if err == nil {
		o = o.Clone()
		p := o.Value.(*model.IPPool)
		p.Spec.Disabled = !p.Spec.Disabled && m.rng.IntN(3) == 0
		_, err = a.store.Update(ctx, o)
	}
	m.check(err, disturbed)
}

// invariants compares the datastore with the model.
func (m *modelRun) invariants() {
	s := readState(m.t, m.store)
	for a, h := range m.live {
		if s.owner[a] != h {
			m.t.Errorf("%s was assigned to %s, and the datastore has it as %q", a, h, s.owner[a])
		}
	}
	for a, h := range s.owner {
		if m.live[a] == "" && !m.loose[h] {
			m.t.Errorf("%s is leaked: it is assigned to %s, which is not in use", a, h)
		}
	}
	for h := range m.loose { // checkHandles does not know them
		delete(s.has, h)
	}
	s.checkHandles(m.t, func(h string) bool { return m.loose[h] })
	s.checkAffinities(m.t)
}

// recover does what the garbage collection does: it releases what no live handle has, and corrects the handles.
func (m *modelRun) recover() {
	a := New(m.store, nil, m.clock)
	for _, b := range readState(m.t, m.store).blocks {
		for x := range Allocations(b) {
			if m.live[x.Address] == "" {
				if _, err := a.ReleaseIPs(m.t.Context(), Release{Address: x.Address, Handle: x.Handle,
					Sequence: &x.Sequence}); err != nil {
					m.t.Errorf("collect: %v", err)
				}
			}
		}
	}
	for _, h := range slices.Sorted(maps.Keys(m.loose)) {
		if err := a.SettleHandle(m.t.Context(), h); err != nil {
			m.t.Errorf("settle: %v", err)
		}
	}
	s := readState(m.t, m.store)
	for h, blocks := range s.has {
		for b := range blocks {
			if err := a.CountHandle(m.t.Context(), h, b); err != nil {
				m.t.Errorf("count: %v", err)
			}
		}
	}
	clear(m.loose)
	m.invariants()
}

// end releases everything, and requires an empty datastore.
func (m *modelRun) end() {
	m.recover()
	a := New(m.store, nil, m.clock)
	for _, h := range m.live {
		_, _ = a.ReleaseByHandle(m.t.Context(), h)
	}
	m.now = m.now.Add(time.Minute)
	for cidr := range readState(m.t, m.store).blocks {
		if _, err := a.CollectCold(m.t.Context(), cidr); err != nil {
			m.t.Errorf("cooldown: %v", err)
		}
	}
	releaseEverything(m.t, m.store, m.clock)
	m.t.Logf("%d assignments and releases, %d died, %d met another operation, %d refused", m.counted, m.deaths,
		m.meetings, m.refused)
}

// run does operations until it has counted so many assignments and releases. It compares after every few operations.
func (m *modelRun) run(operations, every int) {
	for i := 1; m.counted < operations && !m.t.Failed(); i++ {
		if m.step(); i%every == 0 {
			m.invariants()
		}
		if i%500 == 0 {
			m.recover()
		}
	}
	m.finish()
}

// finish ends the run, or shows what came before its failure.
func (m *modelRun) finish() {
	if !m.t.Failed() {
		m.end()
	}
	if m.t.Failed() {
		m.t.Log("the last operations:\n" + strings.Join(m.trace, "\n"))
	}
}

// TestModel runs the model on the store in memory with a few seeds, or with MANX_IPAM_OPERATIONS as long as one likes.
func TestModel(t *testing.T) {
	every, seeds := 1, 3
	operations, first := modelSize(t, 600)
	switch {
	case os.Getenv(modelEnv) != "":
		every, seeds = 20, 1
	case os.Getenv(modelSeedEnv) != "":
		seeds = 1
	}
	for i := range seeds {
		seed := first + uint64(i)
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			store := newMemory()
			store.forget = true
			newModelRun(t, store, seed).createNodes().run(operations, every)
		})
	}
}

// modelSize returns the number of operations and the seed of a run, from the environment or else the given one and a
// random one.
func modelSize(t *testing.T, operations int) (_ int, seed uint64) {
	t.Helper()
	seed = rand.Uint64()
	if text := os.Getenv(modelSeedEnv); text != "" {
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatalf("%s: %v", modelSeedEnv, err)
		}
		seed = n
	}
	if text := os.Getenv(modelEnv); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil {
			t.Fatalf("%s: %v", modelEnv, err)
		}
		operations = n
	}
	return operations, seed
}

// TestModelOnEtcd runs a slice of the model on a real etcd, which restarts in between.
func TestModelOnEtcd(t *testing.T) {
	server := etcdtest.Start(t)
	seed := rand.Uint64()
	t.Log("seed ", seed)
	m := newModelRun(t, server.Store(t), seed).createNodes()
	for i := range 2 {
		for range 60 {
			m.step()
		}
		m.invariants()
		if i == 0 {
			server.Restart(t)
			m.waitForStore()
		}
	}
	m.end()
}

// TestModelOnKubernetes runs a slice of the model on a real kube-apiserver.
func TestModelOnKubernetes(t *testing.T) {
	api := apiserver.Start(t)
	api.InstallCRDs(t, form.V1)
	for i := range modelHosts {
		api.Request(t, http.MethodPost, "/api/v1/nodes", map[string]any{"apiVersion": "v1", "kind": "Node",
			"metadata": map[string]any{"name": modelHost(i)}})
	}
	store, err := kubernetes.OpenREST(t.Context(), kubernetes.Config{InterfacePrefix: "cali"},
		api.Config(apiserver.Admin), zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	seed := rand.Uint64()
	t.Log("seed ", seed)
	newModelRun(t, store, seed).run(60, 10)
}

// waitForStore waits until the store answers again.
func (m *modelRun) waitForStore() {
	for end := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		_, err := m.store.Get(m.t.Context(), model.IPAMConfigKey)
		if err == nil {
			return
		}
		if time.Now().After(end) {
			m.t.Fatalf("etcd does not answer after its restart: %v", err)
		}
	}
}
