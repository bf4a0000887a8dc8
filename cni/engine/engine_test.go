package engine

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"go.uber.org/zap"

	"github.com/manxnet/manx/cni"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/ipam"
)

func TestHostInterfaceNames(t *testing.T) {
	for _, c := range []struct {
		w      workload
		prefix string
		want   string
	}{
		{workload{Namespace: "default", Pod: "mypod"}, "cali", "cali4e199eba087"},
		{workload{Namespace: "namespace", Pod: "podname"}, "cali", "cali82111e10a96"},
		{workload{Namespace: "default", Pod: "nginx"}, "cali", "calic440f455693"},
		{workload{ContainerID: "136a7bfc8f26f8aeb23fd44181eb"}, "cali", "cali136a7bfc8f2"},
		{workload{ContainerID: "short"}, "tap", "tapshort"},
	} {
		if have := c.w.hostIf(c.prefix); have != c.want {
			t.Errorf("%+v: %s, want %s", c.w, have, c.want)
		}
	}
}

func TestEndpointKeepsWhatOthersWrote(t *testing.T) {
	old := &model.WorkloadEndpoint{}
	old.UID, old.Labels = "u", map[string]string{"app": "web"}
	old.Spec.Profiles, old.Spec.ServiceAccountName = []string{"kns.shop"}, "robot"
	w := workload{Network: "net1", Node: "n", ContainerID: "c", IfName: "eth0", Namespace: "shop", Pod: "web-0"}
	e := w.endpoint(old, &cni.Attachment{HostIf: "cali1", MAC: "02:00:00:00:00:01",
		Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.1")}}, false)
	if e.UID != "u" || e.Labels["app"] != "web" || e.Labels[model.LabelOrchestrator] != "k8s" ||
		e.Spec.ServiceAccountName != "robot" ||
		strings.Join(e.Spec.Profiles, ",") != "kns.shop,net1" || e.Spec.ContainerID != "c" {
		t.Errorf("endpoint is %+v", e)
	}
	if len(old.Spec.Profiles) != 1 || len(old.Labels) != 1 {
		t.Errorf("the stored one was changed: %+v", old)
	}
}

func TestReadinessGate(t *testing.T) {
	var calls atomic.Int32
	gate := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if calls.Add(1) < 3 {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	defer gate.Close()
	c := &call{conf: &cni.Config{ReadinessGates: []string{gate.URL}}, log: zap.NewNop()}
	if err := c.waitForGates(context.Background(), time.Millisecond, time.Minute); err != nil || calls.Load() != 3 {
		t.Errorf("%v after %d calls, want success after 3", err, calls.Load())
	}
	gate.Close()
	err := c.waitForGates(context.Background(), time.Millisecond, 20*time.Millisecond)
	var coded *types.Error
	if !errors.As(err, &coded) || coded.Code != types.ErrTryAgainLater {
		t.Errorf("a gate that stays closed: %v", err)
	}
}

// Names and routes are valid for any input of a runtime.
func FuzzQuestion(f *testing.F) {
	f.Add(`{"name":"n","ipam":{"type":"calico-ipam"}}`, "IP=10.0.0.1;K8S_POD_NAME=a;K8S_POD_NAMESPACE=b", "10.0.0.1")
	f.Add(`{"name":"n","ipam":{"type":"host-local","routes":[{"dst":"10.0.0.7/8"}]}}`,
		"K8S_POD_NAME=..;K8S_POD_NAMESPACE=/", "fd00::1")
	f.Fuzz(func(t *testing.T, conf, args, addr string) {
		c, err := cni.ParseConfig([]byte(conf))
		a, argsErr := cni.ParseArgs(args)
		ip, addrErr := netip.ParseAddr(addr)
		if err != nil || argsErr != nil || addrErr != nil {
			return
		}
		w := newWorkload(c.Name, "node", "c", "eth0", a)
		if key, err := w.key(); err == nil && (key.Name == "" || key.Namespace == "") {
			t.Errorf("key is %+v", key)
		}
		if name := w.hostIf("cali"); len(name) > 15 {
			t.Errorf("host interface name %q is too long", name)
		}
		for _, r := range podRoutes(c, []netip.Addr{ip.Unmap()}) {
			if !r.IsValid() || r != r.Masked() {
				t.Errorf("route %v is not valid", r)
			}
		}
	})
}

func TestWhenToWait(t *testing.T) {
	agent := false
	e := New(Config{Agent: func(*cni.Config) bool { return agent }})
	expect := func(what string, seconds any, want time.Duration) {
		t.Helper()
		conf := map[string]any{"name": "n", "ipam": map[string]any{"type": "calico-ipam"}}
		if seconds != nil {
			conf["policy_setup_timeout_seconds"] = seconds
		}
		text, err := json.Marshal(conf)
		if err != nil {
			t.Fatal(err)
		}
		c, err := cni.ParseConfig(text)
		if err != nil {
			t.Fatal(err)
		}
		if have := (&call{Engine: e, conf: c}).policyWait(); have != want {
			t.Errorf("%s: %s, want %s", what, have, want)
		}
	}
	expect("no agent", nil, 0)
	expect("configured", 3, 3*time.Second)
	expect("more than any runtime waits", 1<<40, time.Hour)
	agent = true
	expect("an agent", nil, defaultPolicyWait)
	expect("an agent, but 0", 0, 0)
}

func TestMachineHandle(t *testing.T) {
	long := strings.Repeat("m", 120)
	for _, c := range []struct{ network, namespace, name, want string }{
		{"k8s-pod-network", "shop", "web", "k8s-pod-network.vmi.shop.web"},
		{"net", "shop", "web.one", "net.vmi.shop.web.one"},
		{"net", "shop", long[:115], "net.vmi.shop." + long[:115]},
		{"net", "shop", long[:116], "net.vmi._nWgf3PiLfPpC7Ie11RA1GJg9KR1KvzHjGYlLIIOX3TM"},
	} {
		if have := ipam.MachineHandle(c.network, c.namespace, c.name); have != c.want {
			t.Errorf("%s %s %s: %s, want %s", c.network, c.namespace, c.name, have, c.want)
		}
	}
}
