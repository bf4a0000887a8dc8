package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/etcd/etcdtest"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/integration/jsonlines"
)

const v3root = "/calico/resources/v3/projectcalico.org/"

// write is one line of a recorded history of etcd.
type write struct {
	Rev int64  `json:"rev"`
	Key string `json:"key"`
	Raw string `json:"raw"`
}

// startup has the writes of calicoctl and calico/node to an empty etcd: pools, then the start of node h1 (revisions 19
// to 24).
func startup(t *testing.T) []write {
	t.Helper()
	return jsonlines.Read[write](t, "testdata/startup.jsonl")
}

func put(t *testing.T, client *clientv3.Client, key, value string) {
	t.Helper()
	if _, err := client.Put(t.Context(), key, value); err != nil {
		t.Fatal(err)
	}
}

func rawValue(t *testing.T, client *clientv3.Client, key string) string {
	t.Helper()
	resp, err := client.Get(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	if len(resp.Kvs) == 0 {
		return ""
	}
	return string(resp.Kvs[0].Value)
}

// comparable decodes stored JSON without the fields that differ from run to run.
func comparable(t *testing.T, text string) any {
	t.Helper()
	var v map[string]any
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	meta := v["metadata"].(map[string]any)
	delete(meta, "uid")
	delete(meta, "creationTimestamp")
	if spec := v["spec"].(map[string]any); spec["clusterGUID"] != nil {
		spec["clusterGUID"], spec["calicoVersion"] = "", ""
	}
	return v
}

func register(t *testing.T, store datastore.Store, c Config, host HostAddresses) (Result, error) {
	t.Helper()
	return Register(t.Context(), c, store, host, zap.NewNop())
}

func mustRegister(t *testing.T, store datastore.Store, c Config, host HostAddresses) Result {
	t.Helper()
	r, err := register(t, store, c, host)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func named(name string) Config { return Config{Name: NameSources{Configured: name}, IP: autodetect} }

// Manx must leave the same objects in the datastore as calico/node, byte for byte apart from identities, and from a
// setting that Manx does not have.
func TestStoresWhatCalicoStores(t *testing.T) {
	server := etcdtest.Start(t)
	client, store := server.Client(t), server.Store(t)
	writes := startup(t)
	for _, w := range writes {
		if w.Rev < 19 {
			put(t, client, w.Key, w.Raw)
		}
	}
	c := named("h1")
	c.AS, c.K8sNodeRef, c.ClusterType = "64901", "h1", "bare"
	r := mustRegister(t, store, c, &fixedHost{interfaces: interfaces("lo 127.0.0.1/8", "eth0 172.29.7.11/24")})
	compared := 0
	for _, w := range writes {
		if w.Rev < 19 && !strings.Contains(w.Key, "ippools") {
			continue
		}
		compared++
		w.Raw = strings.Replace(w.Raw, `,"kubeVirtVMAddressPersistence":"Enabled"`, "", 1)
		if got := rawValue(t, client, w.Key); !reflect.DeepEqual(comparable(t, got), comparable(t, w.Raw)) {
			t.Errorf("%s:\n got  %s\n want %s", w.Key, got, w.Raw)
		}
	}
	all, err := client.Get(t.Context(), v3root, clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil || all.Count != int64(len(writes)-1) || compared < 15 { // one of the writes is an update
		t.Errorf("%d objects after %d writes, %d compared, %v", all.Count, len(writes), compared, err)
	}
	if r.Name != "h1" || r.NameFrom != "NODENAME" || len(r.Warnings) != 0 || len(r.Candidates) != 2 {
		t.Errorf("result %+v", r)
	}
}

// The objects that the first node of a new cluster writes.
func TestNewCluster(t *testing.T) {
	server := etcdtest.Start(t)
	client, store := server.Client(t), server.Store(t)
	dir := t.TempDir()
	c := Config{Name: NameSources{File: filepath.Join(dir, "lib", "nodename"), HostName: func() (string, error) {
		return "N1", nil
	}},
		Pool4: PoolConfig{IPIP: "CrossSubnet"}}
	mustRegister(t, store, c, &fixedHost{interfaces: interfaces("eth0 192.168.9.1/24")})
	for _, w := range startup(t) {
		if strings.Contains(w.Key, "tiers") && !reflect.DeepEqual(comparable(t, rawValue(t, client, w.Key)),
			comparable(t, w.Raw)) {
			t.Errorf("%s: %s", w.Key, rawValue(t, client, w.Key))
		}
	}
	var info v3.ClusterInformation
	if err := json.Unmarshal([]byte(rawValue(t, client, v3root+"clusterinformations/default")), &info); err != nil {
		t.Fatal(err)
	}
	if s := info.Spec; len(s.ClusterGUID) != 32 || s.DatastoreReady == nil || !*s.DatastoreReady ||
		s.CalicoVersion != "" || s.ClusterType != "" {
		t.Errorf("ClusterInformation %+v", s)
	}
	for name, want := range map[string]string{"default-ipv4-ippool": "172.16.0.0/16 block 26 nat true export true " +
		"ipip CrossSubnet vxlan Never all()", "default-ipv6-ippool": "/48 block 122 nat false export true ipip Never " +
		"vxlan Never all()"} {
		o, err := store.Get(t.Context(), model.ResourceKey(model.KindIPPool, name))
		if err != nil || !strings.HasSuffix(showPool(o.Value.(*model.IPPool)), want) {
			t.Errorf("%s: %v, %v", name, o, err)
		}
	}
}

// A second start writes nothing; a third with another AS writes the Node and keeps the fields of other writers.
func TestRestart(t *testing.T) {
	server := etcdtest.Start(t)
	client, store := server.Client(t), server.Store(t)
	host := &fixedHost{interfaces: interfaces("eth0 10.0.0.1/24")}
	mustRegister(t, store, named("n1"), host)
	revision := func() int64 {
		resp, err := client.Get(t.Context(), "x")
		if err != nil {
			t.Fatal(err)
		}
		return resp.Header.Revision
	}
	before := revision()
	mustRegister(t, store, named("n1"), host)
	if after := revision(); after != before {
		t.Errorf("an unchanged start wrote %d times", after-before)
	}
	key := v3root + "nodes/n1"
	put(t, client, key, strings.NewReplacer(`"name":"n1"`, `"name":"n1","labels":{"rack":"7"}`, `"spec":{`,
		`"spec":{"novelty":{"a":[1]},"ipv4VXLANTunnelAddr":"10.9.9.9","orchRefs":[{"orchestrator":"other","nodeName":"o"}],`).Replace(rawValue(t, client, key)))
	put(t, client, v3root+"clusterinformations/default",
		`{"kind":"ClusterInformation","apiVersion":"projectcalico.org/v3","metadata":{"name":"default"},"spec":{"clusterGUID":"x","clusterType":"k8s,bgp","calicoVersion":"v3.99.0","datastoreReady":true,"future":1}}`)
	c := named("n1")
	c.AS, c.K8sNodeRef, c.ClusterType = "1.10", "kn1", "bgp, manual"
	if r := mustRegister(t, store, c, host); len(r.Warnings) != 0 {
		t.Errorf("a Node without an AS number: %q", r.Warnings)
	}
	c.AS = "65547"
	core, logged := observer.New(zapcore.WarnLevel)
	r, err := Register(t.Context(), c, store, host, zap.New(core))
	if err != nil || len(r.Warnings) != 0 { // it has the configured one now
		t.Errorf("a Node with another AS number: %q, %v", r.Warnings, err)
	}
	if all := logged.All(); len(all) != 1 ||
		!strings.HasPrefix(all[0].Message, "AS number 65546 of the Node does not last: AS=65547 in the settings") {
		t.Errorf("the log of another AS number: %v", all)
	}
	c.AS = "1.10"
	mustRegister(t, store, c, host)
	got := rawValue(t, client, key)
	for _, want := range []string{`"rack":"7"`, `"novelty":{"a":[1]}`, `"ipv4VXLANTunnelAddr":"10.9.9.9"`,
		`"asNumber":65546`, `{"nodeName":"o","orchestrator":"other"}`, `{"nodeName":"kn1","orchestrator":"k8s"}`} {
		if !strings.Contains(got, want) {
			t.Errorf("the Node lacks %s: %s", want, got)
		}
	}
	got = rawValue(t, client, v3root+"clusterinformations/default")
	for _, want := range []string{`"clusterGUID":"x"`, `"clusterType":"k8s,bgp,manual"`, `"calicoVersion":"v3.99.0"`,
		`"future":1`} {
		if !strings.Contains(got, want) {
			t.Errorf("ClusterInformation lacks %s: %s", want, got)
		}
	}
}

func TestAddressConflict(t *testing.T) {
	store := etcdtest.Start(t).Store(t)
	host := &fixedHost{interfaces: interfaces("eth0 10.0.0.1/24 fd00::1/64")}
	c := named("n1")
	c.IP6 = autodetect
	mustRegister(t, store, c, host)

	_, err := register(t, store, named("n2"), host)
	var conflict *conflictError
	if !errors.As(err, &conflict) || conflict.Other != "n1" ||
		!strings.Contains(err.Error(), "register node n2: address 10.0.0.1 is already used by node n1; set IP or "+
			"IP_AUTODETECTION_METHOD") {
		t.Fatal(err)
	}
	if _, err := store.Get(t.Context(), model.ResourceKey(model.KindNode, "n2")); !errors.Is(err,
		datastore.ErrNotFound) {
		t.Errorf("the Node was written nevertheless: %v", err)
	}
	c = named("n2")
	c.IP, c.IP6 = noAddress, autodetect
	if _, err = register(t, store, c, host); err == nil ||
		!strings.Contains(err.Error(), "set IP6 or IP6_AUTODETECTION_METHOD") {
		t.Error(err)
	}
	c = named("n2")
	c.DisableConflictCheck = true
	mustRegister(t, store, c, host)
	// The running node continues when another one takes its address, and logs the conflict.
	c = named("n1")
	c.IP6 = autodetect
	r := mustRegister(t, store, c, host)
	if len(r.Warnings) != 0 {
		t.Error(r.Warnings)
	}
	tables := datastore.NewTables(zap.NewNop(), "n1")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	go func() { _ = tables.Run(ctx, store, model.KindNode) }()
	for _, c.DisableConflictCheck = range []bool{false, true} {
		core, logs := observer.New(zap.WarnLevel)
		k := &Keeper{Config: c, Registered: r, Store: store, Host: host, Log: zap.New(core)}
		snapshot, err := tables.WaitInSync(ctx)
		if err != nil {
			t.Fatal(err)
		}
		k.warnOfConflict(snapshot)
		want := 1
		if c.DisableConflictCheck {
			want = 0
		}
		if all := logs.All(); len(all) != want ||
			want > 0 && !strings.Contains(all[0].Message, "address 10.0.0.1 is already used by node n2") {
			t.Errorf("check disabled %v, logged: %+v", c.DisableConflictCheck, all)
		}
	}
}

func TestRefused(t *testing.T) {
	server := etcdtest.Start(t)
	client, store := server.Client(t), server.Store(t)
	host := &fixedHost{interfaces: interfaces("eth0 10.0.0.1/24")}
	mustRegister(t, store, named("n1"), host)
	put(t, client, v3root+"nodes/broken", `{"spec":`)
	for _, tc := range []struct {
		rule   string
		config func(*Config)
		host   HostAddresses
		want   string
	}{
		{"AS", func(c *Config) { c.AS = "12.x" }, host, `AS = "12.x": want a number`},
		{"AS 0", func(c *Config) { c.AS = "0" }, host, `AS = "0"`},
		{"no address at all", func(c *Config) { c.IP = noAddress }, host, "neither an IPv4 nor an IPv6 address"},
		{"nothing to detect", func(c *Config) { c.Name.Configured, c.IP = "n2", "" }, &fixedHost{},
			"neither an IPv4 nor an IPv6 address: set IP or IP6; no IPv4 address was found: first-found: none of the " +
				"host's 0 IPv4 addresses fits"},
		{"the host cannot be asked", func(*Config) {}, &fixedHost{err: errors.New("boom")}, "boom"},
		{"NO_DEFAULT_POOLS with a pool", func(c *Config) { c.NoDefaultPools, c.Pool4.CIDR = true, "10.0.0.0/16" }, host,
			"NO_DEFAULT_POOLS is set"},
		{"a pool that cannot be", func(c *Config) { c.Pool4.BlockSize = 8 }, host, "default IPv4 pool: block size 8"},
		{"a name", func(c *Config) { c.Name.Configured = "N 1" }, host, `"N 1" cannot be a node's name`},
		{"an unreadable Node", func(c *Config) { c.Name.Configured = "broken" }, host,
			"register node broken: the stored object cannot be used; repair or delete it"},
	} {
		c := named("n1")
		tc.config(&c)
		if _, err := register(t, store, c, tc.host); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v", tc.rule, err)
		}
	}
	if got := rawValue(t, client, v3root+"nodes/broken"); got != `{"spec":` {
		t.Errorf("the unreadable Node was overwritten: %s", got)
	}
}

// The BGPConfiguration that a chart is about to make is not made before it.
func TestNoBGPConfiguration(t *testing.T) {
	server := etcdtest.Start(t)
	client, store := server.Client(t), server.Store(t)
	c := named("n1")
	c.NoBGPConfiguration = true
	mustRegister(t, store, c, &fixedHost{interfaces: interfaces("eth0 10.0.0.1/24")})
	if got := rawValue(t, client, v3root+"bgpconfigurations/default"); got != "" {
		t.Errorf("there is a BGPConfiguration: %s", got)
	}
	if rawValue(t, client, v3root+"felixconfigurations/default") == "" {
		t.Error("there is no FelixConfiguration")
	}
}

func TestPoolThatCannotBeReadIsAPool(t *testing.T) {
	server := etcdtest.Start(t)
	client, store := server.Client(t), server.Store(t)
	put(t, client, v3root+"ippools/p", `garbage`)
	r := mustRegister(t, store, named("n1"), &fixedHost{interfaces: interfaces("eth0 10.0.0.1/24")})
	if pools, _, err := store.List(t.Context(), model.KindIPPool, ""); err != nil || len(pools) != 1 {
		t.Errorf("%d pools, %v", len(pools), err)
	}
	if len(r.Warnings) != 2 || !strings.Contains(r.Warnings[0], "IPPool p may be one but cannot be read") {
		t.Error(r.Warnings)
	}
}

// Many nodes start at once on an empty cluster.
func TestManyAtOnce(t *testing.T) {
	store := etcdtest.Start(t).Store(t)
	const n = 12
	var wg sync.WaitGroup
	errs := make([]error, n)
	for i := range n {
		wg.Go(func() {
			c := named(fmt.Sprintf("n%d", i))
			c.ClusterType = fmt.Sprintf("t%d", i)
			_, errs[i] = Register(t.Context(), c, store,
				&fixedHost{interfaces: interfaces(fmt.Sprintf("eth0 10.0.0.%d/24", i+1))}, zap.NewNop())
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	o, err := store.Get(t.Context(), model.ResourceKey(model.KindClusterInformation, "default"))
	if err != nil || len(strings.Split(o.Value.(*v3.ClusterInformation).Spec.ClusterType, ",")) != n {
		t.Errorf("a cluster type was lost: %+v, %v", o, err)
	}
	if pools, _, err := store.List(t.Context(), model.KindIPPool, ""); err != nil || len(pools) != 2 {
		t.Errorf("%d pools, %v", len(pools), err)
	}
}

func TestLockedAndUnreachableDatastore(t *testing.T) {
	server := etcdtest.Start(t)
	client, store := server.Client(t), server.Store(t)
	host := &fixedHost{interfaces: interfaces("eth0 10.0.0.1/24")}
	locked := `{"kind":"ClusterInformation","apiVersion":"projectcalico.org/v3","metadata":{"name":"default"},"spec":{"clusterGUID":"x","calicoVersion":"v3.1.0","datastoreReady":false}}`
	put(t, client, v3root+"clusterinformations/default", locked)
	if _, err := register(t, store, named("n1"), host); !errors.Is(err, errLocked) {
		t.Fatal(err)
	}
	if got := rawValue(t, client, v3root+"nodes/n1"); got != "" {
		t.Errorf("a locked datastore was written: %s", got)
	}
	c := named("n1")
	c.WaitForDatastore = true
	done := make(chan error, 1)
	go func() {
		_, err := Register(t.Context(), c, store, host, zap.NewNop())
		done <- err
	}()
	select {
	case err := <-done:
		t.Fatalf("did not wait: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	put(t, client, v3root+"clusterinformations/default", strings.Replace(locked, "false", "true", 1))
	if err := <-done; err != nil {
		t.Fatal(err)
	}

	server.Stop()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := Register(ctx, c, store, host, zap.NewNop()); err == nil {
		t.Error("registered with a stopped datastore")
	}
	go func() {
		_, err := Register(t.Context(), c, store, host, zap.NewNop())
		done <- err
	}()
	server.Restart(t)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestRenamedHostIsTold(t *testing.T) {
	store := etcdtest.Start(t).Store(t)
	c := named("new")
	c.Name.File = filepath.Join(t.TempDir(), "nodename")
	if err := (Files{Name: c.Name.File}).Write("old"); err != nil {
		t.Fatal(err)
	}
	r := mustRegister(t, store, c, &fixedHost{interfaces: interfaces("eth0 10.0.0.1/24")})
	if len(r.Warnings) != 1 || !strings.Contains(r.Warnings[0], "this host was node old and is now new") {
		t.Error(r.Warnings)
	}
}

// changing is a host whose interfaces a test replaces.
type changing struct {
	mu sync.Mutex
	fixedHost
}

func (h *changing) set(lines ...string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.interfaces = interfaces(lines...)
}

func (h *changing) Interfaces() ([]Interface, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.fixedHost.Interfaces()
}

func TestMonitor(t *testing.T) {
	store := etcdtest.Start(t).Store(t)
	mustRegister(t, store, named("other"), &fixedHost{interfaces: interfaces("eth0 10.0.0.77/24")})
	host := &changing{}
	host.set("eth0 10.0.0.1/24")
	c := named("n1")
	c.PollInterval = 5 * time.Millisecond
	r := mustRegister(t, store, c, host)
	results, warned := make(chan Result), make(chan bool, 1)
	core := zapcore.NewCore(zapcore.NewJSONEncoder(zap.NewProductionEncoderConfig()), zapcore.AddSync(io.Discard),
		zapcore.WarnLevel)
	log := zap.New(core, zap.Hooks(func(e zapcore.Entry) error {
		if !strings.Contains(e.Message, "cannot be updated") {
			return nil
		}
		select {
		case warned <- true:
		default:
		}
		return nil
	}))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		Monitor{Config: c, Registered: r, Store: store, Host: host, Log: log, Changed: func(r Result) {
			select {
			case results <- r:
			case <-ctx.Done():
			}
		}}.Run(ctx)
	}()
	until := func(what, address string) {
		t.Helper()
		for range 1000 {
			r := <-results
			if r.Node.Spec.BGP.IPv4Address == address {
				o, err := store.Get(t.Context(), model.ResourceKey(model.KindNode, "n1"))
				if err != nil || o.Value.(*model.Node).Spec.BGP.IPv4Address != address {
					t.Errorf("%s: stored %v, %v", what, o.Value, err)
				}
				return
			}
		}
		t.Fatalf("%s: the address never became %s", what, address)
	}
	until("unchanged", "10.0.0.1/24")
	host.set("eth0 10.0.0.2/24")
	until("a new address", "10.0.0.2/24")
	host.set("eth0")
	until("no address: the Node keeps it", "10.0.0.2/24")
	host.set("eth0 10.0.0.77/24") // another node's
	for refused := false; !refused; {
		r := <-results
		if r.Node.Spec.BGP.IPv4Address != "10.0.0.2/24" {
			t.Fatalf("took another node's address: %+v", r.Node.Spec.BGP)
		}
		refused = len(r.Warnings) == 1 && strings.Contains(r.Warnings[0], "cannot be updated") &&
			strings.Contains(r.Warnings[0], "10.0.0.77 is already used by node other")
	}
	<-warned // the log has it, too
	host.set("eth0 10.0.0.3/24")
	until("after a conflict", "10.0.0.3/24")
	if r := <-results; len(r.Warnings) != 0 {
		t.Errorf("the conflict is over: %q", r.Warnings)
	}
	cancel()
	<-done

	// returns at once: nothing is autodetected
	Monitor{Config: Config{IP: "10.0.0.3"}, Registered: r, Store: store, Host: host, Log: zap.NewNop()}.Run(t.Context())
}
