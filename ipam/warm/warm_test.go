package warm

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/etcd/etcdtest"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/ipam"
)

const (
	patience = time.Minute
	thisNode = "n1"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// store is a real one that records its calls, delays events of its watch, and dies after some writes.
type store struct {
	datastore.Backend

	mu     sync.Mutex
	more   *sync.Cond
	calls  []string
	events int // that may still pass; negative: all
	writes int // that are still done; negative: all
}

var errKilled = errors.New("the process was killed")

func (s *store) call(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, fmt.Sprintf(format, args...))
}

func (s *store) take() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	calls := s.calls
	s.calls = nil
	return calls
}

// allowEvents delivers this many further events; -1 for all.
func (s *store) allowEvents(events int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events = events
	s.more.Broadcast()
}

func (s *store) write(op string, key model.Key) error {
	s.call("%s %s", op, key.Kind)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.writes == 0 {
		return errKilled
	}
	s.writes--
	return nil
}

func (s *store) Get(ctx context.Context, key model.Key) (*model.Object, error) {
	s.call("get %s", key.Kind)
	return s.Backend.Get(ctx, key)
}

func (s *store) List(ctx context.Context, kind model.Kind, namespace string) ([]*model.Object, int64, error) {
	s.call("list %s", kind)
	return s.Backend.List(ctx, kind, namespace)
}

func (s *store) Create(ctx context.Context, o *model.Object) (*model.Object, error) {
	if err := s.write("create", o.Key); err != nil {
		return nil, err
	}
	return s.Backend.Create(ctx, o)
}

func (s *store) Update(ctx context.Context, o *model.Object) (*model.Object, error) {
	if err := s.write("update", o.Key); err != nil {
		return nil, err
	}
	return s.Backend.Update(ctx, o)
}

func (s *store) Delete(ctx context.Context, key model.Key, revision int64) (*model.Object, error) {
	if err := s.write("delete", key); err != nil {
		return nil, err
	}
	return s.Backend.Delete(ctx, key, revision)
}

func (s *store) Watch(ctx context.Context, kinds ...model.Kind) <-chan datastore.Event {
	out := make(chan datastore.Event)
	go func() {
		defer close(out)
		for e := range s.Backend.Watch(ctx, kinds...) {
			s.mu.Lock()
			for s.events == 0 {
				s.more.Wait()
			}
			s.events--
			s.mu.Unlock()
			select {
			case out <- e:
			case <-ctx.Done():
			}
		}
	}()
	return out
}

// cluster is a real etcd with two pools of one block for 16 addresses each and more of them, and two nodes.
type cluster struct {
	*testing.T
	server *etcdtest.Server
	plain  datastore.Backend // of all others
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	server := etcdtest.Start(t)
	c := &cluster{T: t, server: server, plain: server.Store(t)}
	for i, name := range []string{"first", "second"} {
		c.pool(name, model.IPPoolSpec{CIDR: fmt.Sprintf("10.%d.0.0/24", i+1), BlockSize: 28})
	}
	for _, name := range []string{thisNode, "n10"} {
		n := &model.Node{}
		n.Name = name
		c.create(model.ResourceKey(model.KindNode, name), n)
	}
	return c
}

func (c *cluster) create(key model.Key, value any) *model.Object {
	c.Helper()
	o, err := c.plain.Create(c.Context(), model.NewObject(key, value))
	must(c.T, err)
	return o
}

func (c *cluster) pool(name string, spec model.IPPoolSpec) {
	c.Helper()
	p := &model.IPPool{Spec: spec}
	p.Name = name
	c.create(model.ResourceKey(model.KindIPPool, name), p)
}

// process is a process with a Cache.
type process struct {
	*cluster
	store  *store
	tables *datastore.Tables
	cache  *Cache
}

var kinds = []model.Kind{model.KindClusterInformation, model.KindNode, model.KindIPPool, model.KindIPReservation,
	model.KindIPAMConfig, model.KindBlockAffinity}

func (c *cluster) start() *process {
	c.Helper()
	p := &process{cluster: c, store: &store{Backend: c.server.Store(c.T), events: -1, writes: -1},
		tables: datastore.NewTables(zap.NewNop(), thisNode)}
	p.store.more = sync.NewCond(&p.store.mu)
	ctx, cancel := context.WithCancel(context.Background())
	c.Cleanup(func() { cancel(); p.store.allowEvents(-1) })
	go func() { _ = p.tables.Run(ctx, p.store, kinds...) }()
	_, err := p.tables.WaitInSync(ctx)
	must(c.T, err)
	p.cache = New(p.store, p.tables, kinds, func(o *model.Object) bool {
		b, ok := o.Value.(*model.Block)
		return ok && b.Affinity != nil && *b.Affinity == "host:"+thisNode
	})
	p.store.take()
	return p
}

// awaitWrite waits until the tables have caught up with a write.
func (p *process) awaitWrite(o *model.Object) {
	p.Helper()
	p.await(func(s *datastore.Snapshot) bool { return s.Contains(o.Key, o.Revision) })
}

func (p *process) await(ok func(*datastore.Snapshot) bool) {
	p.Helper()
	for end := time.Now().Add(patience); !ok(p.tables.Snapshot()); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			p.Fatal("the tables do not catch up")
		}
	}
}

func (p *process) ipam() *ipam.Allocator { return ipam.New(p.cache.Begin(), nil, nil) }

// assign assigns one address to a handle.
func assign(ctx context.Context, a *ipam.Allocator, host, handle string) (netip.Addr, error) {
	r, err := a.AutoAssign(ctx, ipam.Request{Host: host, Handle: handle, Num4: 1, Use: "Workload"})
	if err != nil || len(r.V4.Addresses) == 0 {
		return netip.Addr{}, errors.Join(err, r.V4.Short())
	}
	return r.V4.Addresses[0].Addr(), nil
}

func affinity(host, cidr string) (model.Key, *model.BlockAffinity) {
	return model.AffinityKey(model.Affinity{Type: "host", Host: host, CIDR: netip.MustParsePrefix(cidr)}),
		&model.BlockAffinity{State: model.StateConfirmed}
}

// names returns the names in a list.
func names(list []*model.Object) string {
	var all []string
	for _, o := range list {
		all = append(all, o.Key.Name)
	}
	return strings.Join(all, " ")
}

// Objects in the tables and this host's blocks are read from memory, with this process's own writes at once. All others
// are read from the datastore.
func TestAnswersFromMemory(t *testing.T) {
	c := newCluster(t)
	p := c.start()
	for _, cidr := range []string{"10.1.0.0/28", "10.1.0.16/28"} {
		key, v := affinity(thisNode, cidr)
		c.create(key, v)
	}
	far, v := affinity("n10", "10.1.0.32/28")
	p.awaitWrite(c.create(far, v))
	for cidr, owner := range map[string]string{"10.1.0.0/28": "host:" + thisNode, "10.1.0.32/28": "host:n10"} {
		b := &model.Block{CIDR: netip.MustParsePrefix(cidr), Affinity: &owner, Allocations: make([]*int, 16)}
		for i := range b.Allocations {
			b.Unallocated = append(b.Unallocated, i)
		}
		c.create(model.BlockKey(b.CIDR), b)
	}
	block := func(cidr string) model.Key { return model.BlockKey(netip.MustParsePrefix(cidr)) }
	fresh, value := affinity(thisNode, "10.1.0.48/28")
	pool := model.ResourceKey(model.KindIPPool, "first")
	absent := model.ResourceKey(model.KindIPPool, "absent")
	get := func(key model.Key) func(*Operation) string {
		return func(o *Operation) string {
			found, err := o.Get(t.Context(), key)
			if errors.Is(err, datastore.ErrNotFound) {
				return "none"
			}
			must(t, err)
			return found.Key.Name
		}
	}
	list := func(kind model.Kind, namespace string) func(*Operation) string {
		return func(o *Operation) string {
			found, _, err := o.List(t.Context(), kind, namespace)
			must(t, err)
			return names(found)
		}
	}
	const two = "host/n1/10.1.0.0/28 host/n1/10.1.0.16/28"
	for _, step := range []struct {
		name, want, calls string
		do                func(*Operation) string
	}{
		{"a pool", "first", "", get(pool)},
		{"a pool that is not there: it may have been made just now", "none", "get IPPool", get(absent)},
		{"an affinity that is not there", "none", "",
			get(model.Key{Kind: fresh.Kind, Name: "10-9-9-0-28", Namespace: fresh.Namespace})},
		{"all pools", "first second", "", list(model.KindIPPool, "")},
		{"affinities of this host", two, "", list(model.KindBlockAffinity, "host/n1")},
		{"those of another", far.Name, "", list(model.KindBlockAffinity, "host/n10")},
		{"all", two + " " + far.Name, "", list(model.KindBlockAffinity, "")},
		{"those of nobody", "", "", list(model.KindBlockAffinity, "host/n")},
		{"a block at first", "10.1.0.0/28", "get IPAMBlock", get(block("10.1.0.0/28"))},
		{"and then", "10.1.0.0/28", "", get(block("10.1.0.0/28"))},
		{"a block of another host", "10.1.0.32/28", "get IPAMBlock", get(block("10.1.0.32/28"))},
		{"which is not kept", "10.1.0.32/28", "get IPAMBlock", get(block("10.1.0.32/28"))},
		{"a handle", "none", "get IPAMHandle", get(model.Key{Kind: model.KindIPAMHandle, Name: "x"})},
		{"an affinity that is made here, before the watch reports it", two + " " + fresh.Name, "create BlockAffinity",
			func(o *Operation) string {
				p.store.allowEvents(0)
				_, err := o.Create(t.Context(), model.NewObject(fresh, value))
				must(t, err)
				return list(model.KindBlockAffinity, "host/n1")(o)
			}},
		{"in other operations, too", fresh.Name, "", get(fresh)},
		{"it is deleted", "none " + two, "delete BlockAffinity", func(o *Operation) string {
			_, err := o.Delete(t.Context(), fresh, 0)
			must(t, err)
			return get(fresh)(o) + " " + list(model.KindBlockAffinity, "host/n1")(o)
		}},
		{"the watch reports that it was made, and not yet that it was deleted", "none " + two, "",
			func(o *Operation) string {
				p.store.allowEvents(1)
				p.await(func(s *datastore.Snapshot) bool { return s.Get(fresh) != nil })
				return get(fresh)(o) + " " + list(model.KindBlockAffinity, "host/n1")(o)
			}},
		{"the watch has reported all", "none " + two, "", func(o *Operation) string {
			p.store.allowEvents(-1)
			p.await(func(s *datastore.Snapshot) bool { return s.Get(fresh) == nil })
			return get(fresh)(o) + " " + list(model.KindBlockAffinity, "host/n1")(o)
		}},
		{"a process that makes and deletes much remembers nothing of it", "0 0", "", func(o *Operation) string {
			for i := range 10 {
				key, v := affinity(thisNode, fmt.Sprintf("10.1.1.%d/28", 16*i))
				_, err := o.Create(t.Context(), model.NewObject(key, v))
				must(t, err)
				_, err = o.Delete(t.Context(), key, 0)
				must(t, err)
			}
			last, err := c.plain.Update(t.Context(), p.tables.Snapshot().Get(far))
			must(t, err)
			p.awaitWrite(last)
			p.store.take()
			p.cache.Begin()
			return fmt.Sprintf("%d %d", len(p.cache.own)-1, len(p.cache.gone)) // but for the block
		}},
		{"an operation one of whose writes failed reads again", "first first", "update IPPool get IPPool get IPPool",
			func(o *Operation) string {
				old := p.tables.Snapshot().Get(pool).Clone()
				old.Revision--
				if _, err := o.Update(t.Context(), old); !errors.Is(err, datastore.ErrConflict) {
					t.Errorf("an update of an old version: %v", err)
				}
				return get(pool)(o) + " " + get(pool)(o)
			}},
		{"the next one does not", "first", "", get(pool)},
		{"the tables are lost", "first first first second", "get IPPool get IPPool list IPPool",
			func(o *Operation) string {
				p.tables.Apply(datastore.Event{Type: datastore.EventLost, Err: errors.New("connection refused")})
				return get(pool)(o) + " " + get(pool)(o) + " " + list(model.KindIPPool, "")(o)
			}},
		{"blocks are still known", "10.1.0.0/28", "", get(block("10.1.0.0/28"))},
	} {
		p.store.take()
		got := step.do(p.cache.Begin())
		if calls := strings.Join(p.store.take(), " "); got != step.want || calls != step.calls {
			t.Errorf("%s: %q with the calls %q; want %q with %q", step.name, got, calls, step.want, step.calls)
		}
	}
}

// Others change cached objects while the watch is behind: no address is assigned twice, and none is from a block of
// another host. After the watch has delivered the change, no address is from a deleted or disabled pool.
func TestOthersWriteMeanwhile(t *testing.T) {
	for _, c := range []struct {
		name      string
		others    func(*cluster, *ipam.Allocator, netip.Prefix) // they do this, and the watch is behind
		delivered bool                                          // it has delivered it
		// that the next address comes from; empty if any will do
		pool     string
		conflict bool // a write of the block fails, so that it is read
	}{
		{"an address of the block", func(c *cluster, a *ipam.Allocator, _ netip.Prefix) {
			_, err := assign(c.Context(), a, thisNode, "net.other")
			must(c.T, err)
		}, false, "10.1.0.0/24", true},
		{"all addresses of the block", func(c *cluster, a *ipam.Allocator, _ netip.Prefix) {
			_, err := a.AutoAssign(c.Context(), ipam.Request{Host: thisNode, Handle: "net.other", Num4: 15,
				Use: "Workload"})
			must(c.T, err)
		}, false, "", true},
		{"another host takes the block", func(c *cluster, _ *ipam.Allocator, block netip.Prefix) {
			c.steal(block, "n10")
		}, false, "", true},
		{"another host takes the block, as the watch reports", func(c *cluster, _ *ipam.Allocator, block netip.Prefix) {
			c.steal(block, "n10")
		}, true, "", false},
		{"the block goes", func(c *cluster, a *ipam.Allocator, block netip.Prefix) {
			_, err := a.ReleaseByHandle(c.Context(), "net.first")
			must(c.T, errors.Join(err, a.ReleaseAffinity(c.Context(), ipam.Host(thisNode), block, true)))
		}, false, "", true},
		{"the pool is disabled", func(c *cluster, _ *ipam.Allocator, _ netip.Prefix) {
			c.changePool("first", func(p *model.IPPool) { p.Spec.Disabled = true })
		}, true, "10.2.0.0/24", false},
		{"the pool is deleted", func(c *cluster, _ *ipam.Allocator, _ netip.Prefix) {
			_, err := c.plain.Delete(c.Context(), model.ResourceKey(model.KindIPPool, "first"), 0)
			must(c.T, err)
		}, true, "10.2.0.0/24", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			all := newCluster(t)
			// Else an address of another host's block may be borrowed.
			all.create(model.IPAMConfigKey, &model.IPAMConfig{StrictAffinity: true,
				AutoAllocateBlocks: true})
			// until the first address is given
			all.changePool("second", func(p *model.IPPool) { p.Spec.Disabled = true })
			p := all.start()
			first, err := assign(t.Context(), p.ipam(), thisNode, "net.first")
			must(t, err)
			p.awaitWrite(all.changePool("second", func(p *model.IPPool) { p.Spec.Disabled = false }))
			p.store.allowEvents(0)
			c.others(all, ipam.New(all.plain, nil, nil), blockOf(first))
			if c.delivered {
				p.store.allowEvents(-1)
				p.awaitWrite(all.changePool("second", func(p *model.IPPool) {
					p.Labels = map[string]string{"last": "change"}
				}))
			}
			p.store.take()
			second, err := assign(t.Context(), p.ipam(), thisNode, "net.second")
			must(t, err)
			if c.pool != "" && !netip.MustParsePrefix(c.pool).Contains(second) {
				t.Errorf("the address is %s, want one of %s", second, c.pool)
			}
			calls := p.store.take()
			if remembered := slices.Contains(calls[:2], "update IPAMBlock"); c.conflict != remembered {
				t.Errorf("at first the block was written as it was in memory: %t; calls %q", remembered, calls)
			}
			p.store.allowEvents(-1)
			all.consistent(map[string]int{"net.second": 1})
			o, err := all.plain.Get(t.Context(), model.BlockKey(blockOf(second)))
			must(t, err)
			if a := o.Value.(*model.Block).Affinity; a == nil || *a != "host:"+thisNode {
				t.Errorf("the address %s is from a block of %v", second, a)
			}
		})
	}
}

// Another process releases addresses of a block that is full in memory: they can be assigned at once.
func TestOthersReleaseMeanwhile(t *testing.T) {
	for _, c := range []struct {
		name   string
		config model.IPAMConfig
		given  bool // the released address itself is requested
	}{
		{"at the limit of blocks", model.IPAMConfig{AutoAllocateBlocks: true, MaxBlocksPerHost: 1}, false},
		{"without automatic blocks", model.IPAMConfig{}, false},
		{"before another block is claimed", model.IPAMConfig{AutoAllocateBlocks: true}, false},
		{"a given address", model.IPAMConfig{AutoAllocateBlocks: true}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			all := newCluster(t)
			p := all.start()
			first, err := assign(t.Context(), p.ipam(), thisNode, "net.first")
			must(t, err)
			_, err = p.ipam().AutoAssign(t.Context(), ipam.Request{Host: thisNode, Handle: "net.others", Num4: 15,
				Use: "Workload"})
			must(t, err)
			c.config.StrictAffinity = true
			p.awaitWrite(all.create(model.IPAMConfigKey, &c.config))
			_, err = ipam.New(all.plain, nil, nil).ReleaseByHandle(t.Context(), "net.first")
			must(t, err)
			again := first
			if c.given {
				err = p.ipam().AssignIP(t.Context(), ipam.AddressRequest{Address: first, Host: thisNode,
					Handle: "net.second"})
			} else {
				again, err = assign(t.Context(), p.ipam(), thisNode, "net.second")
			}
			must(t, err)
			if again != first {
				t.Errorf("the address is %s, want the released one, %s", again, first)
			}
			all.consistent(map[string]int{"net.first": 0, "net.others": 15, "net.second": 1})
		})
	}
}

func blockOf(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, 28).Masked() }

func (c *cluster) changePool(name string, change func(*model.IPPool)) *model.Object {
	c.Helper()
	o, err := c.plain.Get(c.Context(), model.ResourceKey(model.KindIPPool, name))
	must(c.T, err)
	o = o.Clone()
	change(o.Value.(*model.IPPool))
	o, err = c.plain.Update(c.Context(), o)
	must(c.T, err)
	return o
}

// steal assigns a block to another host, like a host that has found its owner deleted.
func (c *cluster) steal(block netip.Prefix, host string) {
	c.Helper()
	old, _ := affinity(thisNode, block.String())
	_, err := c.plain.Delete(c.Context(), old, 0)
	must(c.T, err)
	c.create(affinity(host, block.String()))
	o, err := c.plain.Get(c.Context(), model.BlockKey(block))
	must(c.T, err)
	o = o.Clone()
	owner := "host:" + host
	o.Value.(*model.Block).Affinity = &owner
	_, err = c.plain.Update(c.Context(), o)
	must(c.T, err)
}

// consistent fails unless handles have the expected numbers of addresses in the blocks, and their counters agree.
func (c *cluster) consistent(want map[string]int) {
	c.Helper()
	blocks, _, err := c.plain.List(c.Context(), model.KindIPAMBlock, "")
	must(c.T, err)
	held := map[string]int{}
	for _, o := range blocks {
		b := o.Value.(*model.Block)
		for _, at := range b.Allocations {
			if at != nil && b.Attributes[*at].HandleID != nil {
				held[*b.Attributes[*at].HandleID]++
			}
		}
	}
	for handle, n := range want {
		if held[handle] != n {
			c.Errorf("%s has %d addresses, want %d", handle, held[handle], n)
		}
	}
	handles, _, err := c.plain.List(c.Context(), model.KindIPAMHandle, "")
	must(c.T, err)
	counted := map[string]int{}
	for _, o := range handles {
		for _, n := range o.Value.(*model.Handle).Block {
			counted[o.Key.Name] += n
		}
	}
	for handle, n := range held {
		if counted[handle] != n {
			c.Errorf("%s has %d addresses and counts %d", handle, n, counted[handle])
		}
	}
}

// A process is killed after each of the writes of an assignment or a release. The next one, with an empty memory,
// assigns no address twice, and can release the addresses of the dead one.
func TestKilledBetweenWrites(t *testing.T) {
	for _, c := range []struct {
		name string
		do   func(context.Context, *ipam.Allocator) error
	}{
		{"the first address of a host", func(ctx context.Context, a *ipam.Allocator) error {
			_, err := assign(ctx, a, thisNode, "net.killed")
			return err
		}},
		{"an address and its release", func(ctx context.Context, a *ipam.Allocator) error {
			if _, err := assign(ctx, a, thisNode, "net.killed"); err != nil {
				return err
			}
			_, err := a.ReleaseByHandle(ctx, "net.killed")
			return err
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			for writes := 0; ; writes++ {
				all := newCluster(t)
				dead := all.start()
				dead.store.mu.Lock()
				dead.store.writes = writes
				dead.store.mu.Unlock()
				done := c.do(t.Context(), dead.ipam())
				if done != nil && !errors.Is(done, errKilled) {
					t.Fatalf("after %d writes: %v", writes, done)
				}
				next := all.start()
				_, err := next.ipam().CountHandles(t.Context(), thisNode, func(string) bool { return false })
				must(t, err)
				_, err = assign(t.Context(), next.ipam(), thisNode, "net.next")
				must(t, err)
				if _, err := next.ipam().ReleaseByHandle(t.Context(), "net.killed"); !errors.Is(err,
					datastore.ErrNotFound) {
					must(t, err)
				}
				all.consistent(map[string]int{"net.killed": 0, "net.next": 1})
				if done == nil {
					if writes < 3 {
						t.Errorf("it takes %d writes only", writes)
					}
					return
				}
			}
		})
	}
}

// BenchmarkList lists the affinities of one host among those of so many.
func BenchmarkList(b *testing.B) {
	for _, hosts := range []int{10, 1000, 10_000} {
		b.Run(fmt.Sprintf("%d hosts", hosts), func(b *testing.B) {
			tables := datastore.NewTables(zap.NewNop(), thisNode)
			var events []datastore.Event
			for i := range hosts {
				for j := range 4 {
					key, v := affinity(fmt.Sprintf("n%d", i), fmt.Sprintf("10.%d.%d.%d/26", i>>8, i&255, 64*j))
					o := model.NewObject(key, v)
					o.Revision = 1
					events = append(events, datastore.Event{Type: datastore.EventUpdate, Key: key, Object: o,
						Revision: 1})
				}
			}
			tables.Apply(append(events, datastore.Event{Type: datastore.EventInSync, Revision: 1})...)
			o := New(nil, tables, kinds, nil).Begin()
			for b.Loop() {
				if list, _, _ := o.List(b.Context(), model.KindBlockAffinity, "host/"+thisNode); len(list) != 4 {
					b.Fatal(names(list))
				}
			}
		})
	}
}
