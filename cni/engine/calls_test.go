package engine_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	"go.uber.org/zap"

	"github.com/manxnet/manx/cni"
	"github.com/manxnet/manx/cni/engine"
	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/etcd/etcdtest"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/ipam"
	"github.com/manxnet/manx/ipam/warm"
)

// counted is a datastore that counts its calls, and can fail or hold some.
type counted struct {
	datastore.Backend
	mu    sync.Mutex
	calls []string
	hook  func(call string) error
	after func(call string) // called after a successful creation
}

func (s *counted) call(op string, kind model.Kind) error {
	s.mu.Lock()
	text := op + " " + string(kind)
	s.calls = append(s.calls, text)
	hook := s.hook
	s.mu.Unlock()
	if hook != nil {
		return hook(text)
	}
	return nil
}

// seen returns the calls since the last take.
func (s *counted) seen() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.calls)
}

// take returns the calls since the last one.
func (s *counted) take() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := s.calls
	s.calls = nil
	return list
}

func (s *counted) setHook(hook func(call string) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hook = hook
}

func (s *counted) Get(ctx context.Context, k model.Key) (*model.Object, error) {
	if err := s.call("get", k.Kind); err != nil {
		return nil, err
	}
	return s.Backend.Get(ctx, k)
}

func (s *counted) List(ctx context.Context, k model.Kind, ns string) ([]*model.Object, int64, error) {
	if err := s.call("list", k); err != nil {
		return nil, 0, err
	}
	return s.Backend.List(ctx, k, ns)
}

func (s *counted) Create(ctx context.Context, o *model.Object) (*model.Object, error) {
	if err := s.call("create", o.Key.Kind); err != nil {
		return nil, err
	}
	stored, err := s.Backend.Create(ctx, o)
	if err == nil && s.after != nil {
		s.after("create " + string(o.Key.Kind))
	}
	return stored, err
}

func (s *counted) Update(ctx context.Context, o *model.Object) (*model.Object, error) {
	if err := s.call("update", o.Key.Kind); err != nil {
		return nil, err
	}
	return s.Backend.Update(ctx, o)
}

func (s *counted) Delete(ctx context.Context, k model.Key, revision int64) (*model.Object, error) {
	if err := s.call("delete", k.Kind); err != nil {
		return nil, err
	}
	return s.Backend.Delete(ctx, k, revision)
}

// node is an engine as manxd has it, with tables and a warm cache on a real etcd.
type node struct {
	t            *testing.T
	server       *etcdtest.Server
	plain        datastore.Store // beside the engine
	store        *counted
	tables       *datastore.Tables
	cache        *warm.Cache
	engine       *engine.Engine
	dir          string
	disconnected bool // the datastore is away
	begin        func(*cni.Attachment)
	ifName       string       // of the container's interface
	result       atomic.Value // the result of the last response, a string
}

var kinds = []model.Kind{model.KindClusterInformation, model.KindNode, model.KindIPPool, model.KindIPReservation,
	model.KindIPAMConfig, model.KindBlockAffinity, model.KindWorkloadEndpoint, model.KindProfile}

func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{t: t, server: etcdtest.Start(t), dir: t.TempDir(), ifName: "eth0"}
	n.plain = n.server.Store(t)
	ready := true
	info := &v3.ClusterInformation{}
	info.Spec.DatastoreReady = &ready
	info.Name = "default"
	n.create(model.ResourceKey(model.KindClusterInformation, "default"), info)
	for name, spec := range map[string]model.IPPoolSpec{"four": {CIDR: "10.65.0.0/24", BlockSize: 28},
		"six": {CIDR: "fd65::/112", BlockSize: 122}} {
		pool := &model.IPPool{Spec: spec}
		pool.Name = name
		n.create(model.ResourceKey(model.KindIPPool, name), pool)
	}
	self := &model.Node{}
	self.Name = "node-1"
	n.create(model.ResourceKey(model.KindNode, "node-1"), self)
	n.store = &counted{Backend: n.server.Store(t)}
	n.start()
	return n
}

func (n *node) create(key model.Key, value any) {
	n.t.Helper()
	_, err := n.plain.Create(n.t.Context(), model.NewObject(key, value))
	n.must(err)
}

func (n *node) must(err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatal(err)
	}
}

// start makes a new engine, as another process would.
func (n *node) start() {
	n.t.Helper()
	n.tables = datastore.NewTables(zap.NewNop(), "node-1")
	ctx, cancel := context.WithCancel(context.Background())
	n.t.Cleanup(cancel)
	go func() { _ = n.tables.Run(ctx, n.store, kinds...) }()
	_, err := n.tables.WaitInSync(ctx)
	n.must(err)
	n.cache = warm.New(n.store, n.tables, kinds, func(o *model.Object) bool {
		b, ok := o.Value.(*model.Block)
		return ok && b.Affinity != nil && *b.Affinity == "host:node-1"
	})
	n.engine = engine.New(engine.Config{Lasting: true, MTUFile: "/nonexistent",
		Open: func(context.Context, *cni.Config) (engine.Store, func(), error) {
			return n.cache.Begin(), func() {}, nil
		},
		Node: func(*cni.Config) (string, error) { return "node-1", nil }})
}

// call makes one request about a container.
func (n *node) call(step cni.Step, container string, a *cni.Attachment, conf map[string]any) (*cni.Attachment, error) {
	return n.callWithArgs("", step, container, a, conf)
}

// callWithArgs is call with CNI_ARGS.
func (n *node) callWithArgs(args string, step cni.Step, container string, a *cni.Attachment, conf map[string]any) (
	*cni.Attachment, error) {
	all := map[string]any{"cniVersion": "1.0.0", "name": "net", "type": "calico",
		"ipam":           map[string]any{"type": "calico-ipam"},
		"ipam_lock_file": filepath.Join(n.dir, "ipam.lock"), "policy_setup_timeout_seconds": 0}
	for k, v := range conf {
		all[k] = v
	}
	text, err := json.Marshal(all)
	n.must(err)
	r, err := n.engine.Call(context.Background(), &cni.Request{Version: cni.ProtocolVersion, Step: step,
		ContainerID: container, Netns: "/run/netns/" + container, IfName: n.ifName, Args: args, Config: text,
		Attachment: a, Begin: n.begin})
	if err == nil && r.Error != nil {
		err = r.Error
	}
	if err != nil {
		return nil, err
	}
	n.result.Store(r.Result)
	return r.Attachment, nil
}

func (n *node) add(container string) *cni.Attachment {
	n.t.Helper()
	a, err := n.call(cni.StepAdd, container, nil, nil)
	n.must(err)
	return a
}

func (n *node) finish(container string, a *cni.Attachment) {
	n.t.Helper()
	_, err := n.call(cni.StepFinish, container, a, nil)
	n.must(err)
}

func (n *node) del(container string) {
	n.t.Helper()
	for _, step := range []cni.Step{cni.StepDel, cni.StepRelease} {
		_, err := n.call(step, container, nil, nil)
		n.must(err)
	}
}

// leftovers lists the objects of containers that are left in the datastore.
func (n *node) leftovers() string {
	n.t.Helper()
	var list []string
	for _, kind := range []model.Kind{model.KindWorkloadEndpoint, model.KindIPAMHandle} {
		objects, _, err := n.plain.List(context.Background(), kind, "")
		n.must(err)
		for _, o := range objects {
			list = append(list, o.Key.String())
		}
	}
	blocks, _, err := n.plain.List(context.Background(), model.KindIPAMBlock, "")
	n.must(err)
	for _, o := range blocks {
		for i, a := range o.Value.(*model.Block).Allocations {
			if a != nil {
				list = append(list, fmt.Sprintf("%s ordinal %d", o.Key, i))
			}
		}
	}
	return strings.Join(list, "\n")
}

// TestOneWriteOnTheWayOfAnAdd: once a node has a block, the response with the addresses waits for one write, of the
// block, and for no read. The handle and the endpoint follow while the container is wired, and Finish waits for them.
func TestOneWriteOnTheWayOfAnAdd(t *testing.T) {
	n := newNode(t)
	n.finish("first", n.add("first")) // claims the block, makes the profile
	n.store.take()
	hold := make(chan struct{})
	n.store.setHook(func(call string) error {
		if call == "create IPAMHandle" {
			<-hold
		}
		return nil
	})
	a := n.add("second")
	before := slices.DeleteFunc(n.store.take(), func(call string) bool { return call == "create IPAMHandle" })
	if !slices.Equal(before, []string{"update IPAMBlock"}) {
		t.Errorf("before the answer: %q, want one update of the block", before)
	}
	close(hold)
	n.finish("second", a)
	after := n.store.take()
	if len(after) > 2 || !slices.Contains(after, "create WorkloadEndpoint") {
		t.Errorf("behind the answer: %q, want the endpoint beside the handle", after)
	}
	// An ADD for both families needs one write for each.
	conf := map[string]any{"ipam": map[string]any{"type": "calico-ipam", "assign_ipv6": "true"}}
	for _, id := range []string{"third", "fourth"} {
		n.store.take()
		a, err := n.call(cni.StepAdd, id, nil, conf)
		n.must(err)
		_, err = n.call(cni.StepFinish, id, a, conf)
		n.must(err)
	}
	calls := n.store.take()
	if n := len(slices.DeleteFunc(slices.Clone(calls),
		func(c string) bool { return c != "update IPAMBlock" })); n != 2 {
		t.Errorf("for both families: %q, want two updates of blocks", calls)
	}
	for _, id := range []string{"first", "second", "third", "fourth"} {
		n.del(id)
	}
	if left := n.leftovers(); left != "" {
		t.Errorf("left behind:\n%s", left)
	}
}

// After a conflict with another writer, such as Calico's own plugin, the engine reads again.
func TestOthersWriteTheBlock(t *testing.T) {
	n := newNode(t)
	first := n.add("first")
	n.finish("first", first)
	other := ipam.New(n.plain, nil, nil)
	r, err := other.AutoAssign(t.Context(), ipam.Request{Host: "node-1", Handle: "net.other", Num4: 1, Use: "Workload"})
	n.must(err)
	second := n.add("second")
	n.finish("second", second)
	seen := map[netip.Addr]bool{first.Addresses[0]: true, r.V4.Addresses[0].Addr(): true, second.Addresses[0]: true}
	if len(seen) != 3 {
		t.Errorf("three containers have the addresses %v", seen)
	}
	_, err = other.ReleaseByHandle(t.Context(), "net.second") // by another program
	n.must(err)
	n.del("second")
	n.del("first")
	_, err = other.ReleaseByHandle(t.Context(), "net.other")
	n.must(err)
	if left := n.leftovers(); left != "" {
		t.Errorf("left behind:\n%s", left)
	}
}

// Fifty containers at once: as many addresses, nothing left after their DELs, and one allocation for each.
func TestFiftyAtOnce(t *testing.T) {
	n := newNode(t)
	const many = 50
	addresses := make([]netip.Addr, many)
	each := func(do func(i int, id string)) {
		var all sync.WaitGroup
		for i := range many {
			all.Go(func() { do(i, fmt.Sprintf("c%d", i)) })
		}
		all.Wait()
	}
	each(func(i int, id string) {
		a, err := n.call(cni.StepAdd, id, nil, nil)
		if err == nil {
			addresses[i] = a.Addresses[0]
			_, err = n.call(cni.StepFinish, id, a, nil)
		}
		if err != nil {
			t.Error(err)
		}
	})
	slices.SortFunc(addresses, netip.Addr.Compare)
	if got := len(slices.Compact(addresses)); got != many {
		t.Errorf("%d containers have %d addresses", many, got)
	}
	each(func(_ int, id string) { n.del(id) })
	if left := n.leftovers(); left != "" {
		t.Errorf("left behind:\n%s", left)
	}
}

// Any write of an ADD may fail, and the process may end with it: the ADD can be repeated and keeps its address, and a
// DEL leaves nothing. The DEL may be one of this engine, or of the plugin that reaches the datastore itself.
func TestAnyWriteMayFailOrBeTheLast(t *testing.T) {
	for _, failing := range []string{"update IPAMBlock", "create IPAMHandle", "create WorkloadEndpoint"} {
		for _, ending := range []string{"abort", "del", "del of another process", "repeat in another process"} {
			t.Run(failing+" "+ending, func(t *testing.T) {
				n := newNode(t)
				n.finish("first", n.add("first"))
				n.store.setHook(func(call string) error {
					if call == failing {
						return datastore.ErrUnavailable
					}
					return nil
				})
				a, err := n.call(cni.StepAdd, "c", nil, nil)
				if err == nil {
					n.engine.Wait()
					if ending == "abort" {
						if _, err := n.call(cni.StepFinish, "c", a, nil); err == nil ||
							!strings.Contains(err.Error(), "datastore did not answer") {
							t.Errorf("finish: %v", err)
						}
					}
				}
				n.store.setHook(nil)
				switch ending {
				case "abort":
					if a == nil { // Add has failed: the runtime calls DEL
						n.del("c")
						break
					}
					_, err := n.call(cni.StepAbort, "c", a, nil)
					n.must(err)
				case "del":
					n.del("c")
				case "del of another process":
					n.start()
					n.del("c")
				case "repeat in another process":
					n.start()
					again := n.add("c")
					if a != nil && again.Addresses[0] != a.Addresses[0] {
						t.Errorf("address %s, then %s", a.Addresses[0], again.Addresses[0])
					}
					n.finish("c", again)
					h, err := n.plain.Get(t.Context(), model.HandleKey("net.c"))
					if n.must(err); len(h.Value.(*model.Handle).Block) != 1 {
						t.Errorf("handle is %+v", h.Value)
					}
					n.del("c")
				}
				n.del("first")
				if left := n.leftovers(); left != "" {
					t.Errorf("left behind:\n%s", left)
				}
			})
		}
	}
}

// A manxd that was killed between the write of the block and the write of the handle leaves a handle without the
// address. The next manxd writes the handle, so that Calico's own tools release the address, too. Finish by the next
// manxd does the same.
func TestHandlesAreRepairedAfterACrash(t *testing.T) {
	n := newNode(t)
	n.finish("first", n.add("first"))
	dead := errors.New("dead")
	n.store.setHook(func(call string) error {
		if call == "create IPAMHandle" || call == "create WorkloadEndpoint" {
			return dead
		}
		return nil
	})
	a, b := n.add("a"), n.add("b")
	n.engine.Wait()
	n.store.setHook(nil)
	n.start()
	n.finish("a", a)
	for _, id := range []string{"a"} {
		if _, err := n.plain.Get(t.Context(), model.HandleKey("net."+id)); err != nil {
			t.Errorf("after finish: %v", err)
		}
	}
	if _, err := n.plain.Get(t.Context(), model.HandleKey("net.b")); !errors.Is(err, datastore.ErrNotFound) {
		t.Errorf("the handle of b: %v", err)
	}
	count, err := ipam.New(n.cache.Begin(), nil, nil).CountHandles(t.Context(), "node-1",
		func(h string) bool { return h != "net.b" })
	if n.must(err); count != 1 {
		t.Errorf("%d handles were repaired, want 1", count)
	}
	released, err := ipam.New(n.plain, nil, nil).ReleaseByHandle(t.Context(), "net.b")
	if n.must(err); len(released) != 1 || released[0] != b.Addresses[0] {
		t.Errorf("the handle of b releases %v, want %v", released, b.Addresses)
	}
	n.del("a")
	n.del("first")
	if left := n.leftovers(); left != "" {
		t.Errorf("left behind:\n%s", left)
	}
}

// Another IPAM plugin gets a configuration that it can read although this node has no CIDR of pods.
func TestStatusAndGCWithoutPodCIDRs(t *testing.T) {
	n := newNode(t)
	for _, step := range []cni.Step{cni.StepStatus, cni.StepGC} {
		r, err := n.engine.Call(t.Context(), &cni.Request{Version: cni.ProtocolVersion, Step: step,
			Config: []byte(`{"cniVersion":"1.1.0","name":"net","ipam":{"type":"host-local","subnet":"usePodCidr"}}`)})
		if n.must(err); r.Error != nil || !strings.Contains(string(r.Config), `"subnet":"0.0.0.0/0"`) {
			t.Errorf("%s: %+v, configuration %s", step, r.Error, r.Config)
		}
	}
}

// The undone ADD of a second interface leaves the first one its address: both share the container's handle.
func TestUndoneSecondInterface(t *testing.T) {
	n := newNode(t)
	first := n.add("c")
	n.finish("c", first)
	before := n.leftovers()
	for name, x := range map[string]struct {
		args string
		ipam map[string]any
	}{
		"any address":         {},
		"the address by name": {args: "IP=" + first.Addresses[0].String()},
		"one more family":     {ipam: map[string]any{"type": "calico-ipam", "assign_ipv6": "true"}},
	} {
		t.Run(name, func(t *testing.T) {
			conf := map[string]any{}
			if x.ipam != nil {
				conf["ipam"] = x.ipam
			}
			n.ifName = "eth1"
			defer func() { n.ifName = "eth0" }()
			a, err := n.callWithArgs(x.args, cni.StepAdd, "c", nil, conf)
			n.must(err)
			_, err = n.callWithArgs(x.args, cni.StepAbort, "c", a, conf)
			n.must(err)
			if after := n.leftovers(); after != before {
				t.Errorf("there is now\n%s\nand was\n%s", after, before)
			}
		})
	}
	n.del("c")
	if left := n.leftovers(); left != "" {
		t.Errorf("left behind:\n%s", left)
	}
}

// A block is claimed before the present one is full.
func TestABlockIsClaimedAhead(t *testing.T) {
	n := newNode(t)
	keeper := ipam.NewKeeper(func() *ipam.Allocator { return ipam.New(n.cache.Begin(), nil, nil) }, zap.NewNop())
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { _ = keeper.Run(ctx) }()
	request := ipam.Request{Host: "node-1", Num4: 1, Use: "Workload"}
	blocks := func() (claimed int) { // the last write of a claim confirms its affinity
		list, _, err := n.plain.List(t.Context(), model.KindBlockAffinity, "")
		n.must(err)
		for _, o := range list {
			if o.Value.(*model.BlockAffinity).State == model.StateConfirmed {
				claimed++
			}
		}
		return claimed
	}
	for i := range 9 { // of 16: 7 are left
		n.finish(fmt.Sprint(i), n.add(fmt.Sprint(i)))
		keeper.Assigned(request)
	}
	for end := time.Now().Add(30 * time.Second); blocks() != 2; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d blocks are claimed, want 2", blocks())
		}
	}
	n.store.take()
	for i := 9; i < 20; i++ { // and on into the next block, without a claim
		n.finish(fmt.Sprint(i), n.add(fmt.Sprint(i)))
	}
	for _, call := range n.store.take() {
		if strings.Contains(call, "BlockAffinity") || strings.HasPrefix(call, "list") || call == "create IPAMBlock" {
			t.Errorf("%s on the way of an ADD", call)
		}
	}
}

// The garbage collection of CNI releases the attachments that the runtime does not list any more, and no others.
func TestGarbageCollection(t *testing.T) {
	n := newNode(t)
	// A virtual machine of calico/node, and a container of the network "net.other", which the engine knows from its
	// first reading of the block.
	others := ipam.New(n.plain, nil, nil)
	for handle, attr := range map[string]string{"net.vmi.shop.vm": "vmi-name", "net.other.c1": "pod"} {
		_, err := others.AutoAssign(t.Context(), ipam.Request{Host: "node-1", Handle: handle, Num4: 1, Use: "Workload",
			Attrs: map[string]string{"node": "node-1", attr: "x"}})
		n.must(err)
	}
	for _, id := range []string{"kept", "lost"} {
		n.finish(id, n.add(id))
	}
	text, err := json.Marshal(map[string]any{"cniVersion": "1.1.0", "name": "net",
		"ipam":           map[string]any{"type": "calico-ipam"},
		"ipam_lock_file": filepath.Join(n.dir, "ipam.lock")})
	n.must(err)
	q := &cni.Request{Version: cni.ProtocolVersion, Step: cni.StepGC, Config: text}
	q.Valid = append(q.Valid, struct {
		ContainerID string `json:"containerID"`
		IfName      string `json:"ifname"`
	}{"kept", "eth0"})
	r, err := n.engine.Call(t.Context(), q)
	if n.must(err); r.Error != nil {
		t.Fatal(r.Error)
	}
	if left := n.leftovers(); strings.Contains(left, "lost") || !strings.Contains(left, "kept") ||
		strings.Count(left, "ordinal") != 3 {
		t.Errorf("left:\n%s", left)
	}
	for _, handle := range []string{"net.vmi.shop.vm", "net.other.c1"} {
		_, err := others.ReleaseByHandle(t.Context(), handle)
		n.must(err)
	}
	n.del("kept")
	if left := n.leftovers(); left != "" {
		t.Errorf("left behind:\n%s", left)
	}
}
