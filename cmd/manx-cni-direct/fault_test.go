package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	"go.uber.org/zap"

	"github.com/manxnet/manx/cni"
	"github.com/manxnet/manx/cni/engine"
	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/model"
)

func jsonEqual(t *testing.T, a, b any) bool {
	t.Helper()
	var texts [2]any
	for i, v := range []any{a, b} {
		data, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(data, &texts[i]); err != nil {
			t.Fatal(err)
		}
	}
	return reflect.DeepEqual(texts[0], texts[1])
}

// direct returns the plugin in this process, in the host's namespace.
func (h *host) direct() *plugin {
	return &plugin{
		getenv: func(string) string { return "" }, stdout: &bytes.Buffer{}, stderr: &bytes.Buffer{}, now: time.Now,
		mtuFile: "/nonexistent",
		open: func(context.Context, *cni.Config, func(string) string, *zap.Logger) (engine.Store, func(), error) {
			return h.store, func() {}, nil
		},
	}
}

func (p *pod) cmdArgs() *skel.CmdArgs {
	p.t.Helper()
	conf, err := json.Marshal(p.conf)
	p.must(err)
	return &skel.CmdArgs{ContainerID: p.id, Netns: p.path(), IfName: "eth0", Args: p.args, StdinData: conf}
}

func TestFailedAddLeavesNothing(t *testing.T) {
	h := newHost(t)
	h.conf["ipam"] = map[string]any{"type": "calico-ipam", "assign_ipv6": "true"}
	p := h.pod("")
	plugin := h.direct()
	var steps []string
	plugin.beforeStep = func(s string) error { steps = append(steps, s); return nil }
	h.must(h.inNamespace(func() error { return plugin.funcs(false).Add(p.cmdArgs()) }))
	h.must(h.inNamespace(func() error { return plugin.funcs(false).Del(p.cmdArgs()) }))
	if len(steps) < 10 {
		t.Fatalf("steps are %q", steps)
	}
	for _, failing := range steps {
		boom := errors.New("injected")
		plugin.beforeStep = func(s string) error {
			if s == failing {
				return boom
			}
			return nil
		}
		err := h.inNamespace(func() error { return plugin.funcs(false).Add(p.cmdArgs()) })
		if err == nil || !strings.Contains(err.Error(), failing) || !strings.Contains(err.Error(), "injected") {
			t.Errorf("%s: error is %v", failing, err)
		}
		if left := h.leftovers(); left != "" {
			t.Errorf("%s: left behind:\n%s", failing, left)
		}
	}
	plugin.beforeStep = nil
	h.must(h.inNamespace(func() error { return plugin.funcs(false).Add(p.cmdArgs()) }))
}

func TestFailedSecondAddKeepsTheFirst(t *testing.T) {
	h := newHost(t)
	p := h.pod("")
	plugin := h.direct()
	h.must(h.inNamespace(func() error { return plugin.funcs(false).Add(p.cmdArgs()) }))
	before := h.leftovers()
	for _, failing := range []string{"write the WorkloadEndpoint", "print the result"} {
		plugin.beforeStep = func(s string) error {
			if s == failing {
				return errors.New("injected")
			}
			return nil
		}
		if err := h.inNamespace(func() error { return plugin.funcs(false).Add(p.cmdArgs()) }); err == nil {
			t.Errorf("%s: no error", failing)
		}
		if after := h.leftovers(); after != before {
			t.Errorf("%s: changed to\n%s\nfrom\n%s", failing, after, before)
		}
	}
}

func TestErrorCodes(t *testing.T) {
	h := newHost(t)
	t.Setenv("CNI_PATH", h.dir)
	good := func() map[string]any {
		c := map[string]any{}
		for k, v := range h.conf {
			c[k] = v
		}
		return c
	}
	for name, c := range map[string]struct {
		change func(conf map[string]any, a *skel.CmdArgs)
		code   uint
		want   string
	}{
		"datastore away": {func(c map[string]any, _ *skel.CmdArgs) { c["etcd_endpoints"] = "http://127.0.0.1:1" }, 11,
			"127.0.0.1:1"},
		"no endpoints": {func(c map[string]any, _ *skel.CmdArgs) { delete(c, "etcd_endpoints") }, 11,
			"start manxd, or set etcd_endpoints"},
		"unknown datastore": {func(c map[string]any, _ *skel.CmdArgs) { c["datastore_type"] = "zookeeper" }, 7,
			"datastore_type"},
		"node name not known": {func(c map[string]any, _ *skel.CmdArgs) { c["nodename_file"] = "/nonexistent" }, 11,
			"manxd writes it"},
		"negative MTU":        {func(c map[string]any, _ *skel.CmdArgs) { c["mtu"] = -1 }, 7, "mtu"},
		"unknown device type": {func(c map[string]any, _ *skel.CmdArgs) { c["device_type"] = "tap" }, 7, "device_type"},
		"no IPAM":             {func(c map[string]any, _ *skel.CmdArgs) { delete(c, "ipam") }, 7, "ipam.type"},
		"wrong type":          {func(c map[string]any, _ *skel.CmdArgs) { c["mtu"] = "big" }, 6, "mtu"},
		"netns missing":       {func(_ map[string]any, a *skel.CmdArgs) { a.Netns = "/run/netns/nosuch" }, 8, "nosuch"},
		"bad IP":              {func(_ map[string]any, a *skel.CmdArgs) { a.Args = "IP=banana" }, 4, "IP=banana"},
		"policy needs Kubernetes": {func(c map[string]any, a *skel.CmdArgs) {
			c["policy"] = map[string]any{"type": "k8s"}
			a.Args = "K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-0"
		}, 7, "Kubernetes API"},
		"unknown IPAM plugin": {func(c map[string]any, _ *skel.CmdArgs) {
			c["ipam"] = map[string]any{"type": "nosuch-ipam"}
		}, 999, "nosuch-ipam"},
	} {
		t.Run(name, func(t *testing.T) {
			h.t = t
			p := h.pod("")
			conf, args := good(), p.cmdArgs()
			c.change(conf, args)
			data, err := json.Marshal(conf)
			h.must(err)
			args.StdinData = data
			plugin := h.direct()
			plugin.open = openDatastore
			conf["etcd_endpoints"] = h.etcd.Endpoint
			if !slices.Contains([]string{"datastore away", "no endpoints"}, name) {
				data, err = json.Marshal(conf)
				h.must(err)
				args.StdinData = data
			}
			err = h.inNamespace(func() error { return plugin.funcs(false).Add(args) })
			var coded *types.Error
			if !errors.As(err, &coded) || coded.Code != c.code || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error is %#v, want code %d and %q", err, c.code, c.want)
			}
			if left := h.leftovers(); left != "" {
				t.Errorf("left behind:\n%s", left)
			}
		})
	}
}

// failingStore fails some of its operations, counted from 1, like a server that goes away.
type failingStore struct {
	datastore.Backend
	n     int
	fails func(n int) bool
}

func (s *failingStore) Close() error { return nil }

func (s *failingStore) nextError() error {
	if s.n++; s.fails(s.n) {
		return datastore.ErrUnavailable
	}
	return nil
}

func (s *failingStore) Get(ctx context.Context, k model.Key) (*model.Object, error) {
	if err := s.nextError(); err != nil {
		return nil, err
	}
	return s.Backend.Get(ctx, k)
}

func (s *failingStore) List(ctx context.Context, k model.Kind, ns string) ([]*model.Object, int64, error) {
	if err := s.nextError(); err != nil {
		return nil, 0, err
	}
	return s.Backend.List(ctx, k, ns)
}

func (s *failingStore) Create(ctx context.Context, o *model.Object) (*model.Object, error) {
	if err := s.nextError(); err != nil {
		return nil, err
	}
	return s.Backend.Create(ctx, o)
}

func (s *failingStore) Update(ctx context.Context, o *model.Object) (*model.Object, error) {
	if err := s.nextError(); err != nil {
		return nil, err
	}
	return s.Backend.Update(ctx, o)
}

func (s *failingStore) Delete(ctx context.Context, k model.Key, revision int64) (*model.Object, error) {
	if err := s.nextError(); err != nil {
		return nil, err
	}
	return s.Backend.Delete(ctx, k, revision)
}

// storeFaults runs ADD once for each of its datastore operations. An operation fails if fails returns true for it. It
// prints the result of each run.
func storeFaults(h *host, fails func(n, failing int) bool, after func(failing int, p *pod, plugin *plugin, err error)) {
	for failing, total := 1, 1000; failing <= total; failing++ {
		p := h.pod("")
		s := &failingStore{Backend: h.store, fails: func(n int) bool { return fails(n, failing) }}
		plugin := h.direct()
		plugin.open = func(context.Context, *cni.Config, func(string) string, *zap.Logger) (engine.Store, func(),
			error) {
			return s, func() {}, nil
		}
		err := h.inNamespace(func() error { return plugin.funcs(false).Add(p.cmdArgs()) })
		if s.n < failing {
			total = 0 // the ADD needs no more operations
		}
		s.fails = func(int) bool { return false }
		after(failing, p, plugin, err)
	}
}

func TestDatastoreFailsOnceDuringAdd(t *testing.T) {
	h := newHost(t)
	failures := 0
	storeFaults(h, func(n, failing int) bool { return n == failing },
		func(failing int, p *pod, plugin *plugin, err error) {
			if err != nil {
				failures++
				var coded *types.Error
				if !errors.As(err, &coded) || coded.Code != types.ErrTryAgainLater {
					t.Errorf("operation %d: error is %#v, want code 11", failing, err)
				}
			} else {
				h.must(h.inNamespace(func() error { return plugin.funcs(false).Del(p.cmdArgs()) }))
			}
			if left := h.leftovers(); left != "" {
				t.Fatalf("operation %d: left behind:\n%s", failing, left)
			}
		})
	if failures < 8 {
		t.Errorf("only %d operations made ADD fail", failures)
	}
}

func TestDatastoreGoesAwayDuringAdd(t *testing.T) {
	h := newHost(t)
	storeFaults(h, func(n, failing int) bool { return n >= failing },
		func(failing int, p *pod, plugin *plugin, _ error) {
			// The runtime calls DEL after a failed ADD, here once the datastore is back.
			h.must(h.inNamespace(func() error { return plugin.funcs(false).Del(p.cmdArgs()) }))
			if left := h.leftovers(); left != "" {
				t.Fatalf("operation %d: left behind:\n%s", failing, left)
			}
		})
}

func TestDatastoreLocked(t *testing.T) {
	h := newHost(t)
	key := model.ResourceKey(model.KindClusterInformation, "default")
	for name, ready := range map[string]*bool{"false": new(bool), "not set": nil} {
		o, err := h.store.Get(context.Background(), key)
		h.must(err)
		o = o.Clone()
		o.Value.(*v3.ClusterInformation).Spec.DatastoreReady = ready
		_, err = h.store.Update(context.Background(), o)
		h.must(err)
		p := h.pod("")
		for verb, err := range map[string]error{"add": p.add(), "del": p.del()} {
			if err == nil || !strings.Contains(err.Error(), "datastoreReady") {
				t.Errorf("%s while datastoreReady is %s: %v", verb, name, err)
			}
		}
	}
	_, err := h.store.Delete(context.Background(), key, 0)
	h.must(err)
	if err := h.pod("").add(); err == nil ||
		!strings.Contains(err.Error(), "ClusterInformation default does not exist") {
		t.Errorf("without ClusterInformation: %v", err)
	}
}

func TestPanicInAddLeavesNothing(t *testing.T) {
	h := newHost(t)
	for _, step := range []string{"assign addresses", "write the WorkloadEndpoint", "print the result"} {
		p := h.pod("")
		plugin := h.direct()
		plugin.beforeStep = func(s string) error {
			if s == step {
				panic("a mistake")
			}
			return nil
		}
		err := h.inNamespace(func() error { return plugin.funcs(false).Add(p.cmdArgs()) })
		if err == nil || !strings.Contains(err.Error(), "bug: a mistake") {
			t.Errorf("%s: error is %v", step, err)
		}
		if left := h.leftovers(); left != "" {
			t.Errorf("%s: left behind:\n%s", step, left)
		}
	}
}
