package controllers

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/manxnet/manx/controllers/calicotest"
	"github.com/manxnet/manx/controllers/kubeapi"
	"github.com/manxnet/manx/datastore/kubernetes"
	"github.com/manxnet/manx/datastore/kubernetes/form"
	"github.com/manxnet/manx/integration/kubernetes/apiserver"
	"github.com/manxnet/manx/ipam"
)

const native = "/apis/projectcalico.org/v3/"

// finalized is a cluster with projectcalico.org/v3, and a user with kubectl.
type finalized struct {
	*testing.T
	api   *apiserver.Server
	store *kubernetes.Store
	kube  *kubeapi.API
}

func newFinalized(t *testing.T) *finalized {
	t.Helper()
	f := &finalized{T: t, api: apiserver.Start(t)}
	f.api.InstallCRDs(t, form.V3)
	var err, also error
	f.store, err = kubernetes.OpenREST(t.Context(), kubernetes.Config{}, f.api.Config(apiserver.Admin), zap.NewNop())
	f.kube, also = kubeapi.New(f.api.Config(apiserver.Admin))
	if err = errors.Join(err, also); err != nil {
		t.Fatal(err)
	}
	f.kube.Namespace = "kube-system"
	t.Cleanup(func() { f.store.Close() }) //nolint:errcheck // the test is over
	return f
}

func (f *finalized) manager(name string) *Manager {
	return New(Config{Node: name, Store: f.store, Kube: f.kube, InKubernetes: true, Log: zap.NewNop(),
		CheckInterval: 100 * time.Millisecond})
}

// start runs the controllers until stop is called.
func (f *finalized) start() (stop func()) {
	ctx, cancel := context.WithCancel(f.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = f.manager("first").Run(ctx) }()
	return func() { cancel(); <-done }
}

func (f *finalized) create(plural, kind, name, spec string) {
	f.api.Request(f.T, http.MethodPost, native+plural, fmt.Appendf(nil,
		`{"apiVersion":"projectcalico.org/v3","kind":%q,"metadata":{"name":%q},"spec":%s}`, kind, name, spec))
}

func (f *finalized) kubectl(args ...string) (string, error) {
	out, err := exec.Command(filepath.Join(apiserver.Programs(), "kubectl"), append(args, "--kubeconfig",
		f.api.Kubeconfig(f.T, apiserver.Admin))...).CombinedOutput()
	return string(out), err
}

// pod creates a pod that is being deleted and ends with remove.
func (f *finalized) pod(name, app string) (remove func()) {
	const pods = "/api/v1/namespaces/kube-system/pods"
	f.api.Request(f.T, http.MethodPost, pods, fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Pod","metadata":{"name":%q,
		"labels":{"k8s-app":%q},"finalizers":["example.com/test"]},"spec":{"automountServiceAccountToken":false,
		"containers":[{"name":"c","image":"i"}]}}`, name, app))
	f.api.Request(f.T, http.MethodDelete, pods+"/"+name, nil)
	return func() {
		f.api.Request(f.T, http.MethodPatch, pods+"/"+name, []byte(`{"metadata":{"finalizers":null}}`))
	}
}

// has reports whether kubectl shows all of the texts in an object.
func (f *finalized) has(object string, texts ...string) bool {
	out, err := f.kubectl("get", object, "-o", "json")
	for _, text := range texts {
		if err != nil || !strings.Contains(out, text) {
			return false
		}
	}
	return true
}

const (
	poolFinalizer = "projectcalico.org/ippool-finalizer"
	tierFinalizer = "projectcalico.org/tier-controller"
)

// `kubectl delete` of a pool and a tier of a cluster whose own group is projectcalico.org/v3 waits until no address is
// assigned and no policy is left. No new address comes from the pool meanwhile.
func TestDeletionsWait(t *testing.T) {
	t.Parallel()
	f := newFinalized(t)
	f.create("ippools", "IPPool", "pods", `{"cidr":"10.7.0.0/24"}`)
	f.create("tiers", "Tier", "web", `{"order":5}`)
	f.create("globalnetworkpolicies", "GlobalNetworkPolicy", "web.deny", `{"tier":"web"}`)
	defer f.start()()
	calicotest.Eventually(t, "the pool has a finalizer and can be used", func() bool {
		return f.has("ippool/pods", poolFinalizer, `"type": "Allocatable"`, `"status": "True"`)
	})
	calicotest.Eventually(t, "the tier has a finalizer and is ready", func() bool {
		return f.has("tier/web", tierFinalizer, `"type": "Ready"`, `"status": "True"`)
	})

	a := ipam.New(f.store, zap.NewNop(), time.Now)
	address := netip.MustParseAddr("10.7.0.20")
	if err := a.AssignIP(t.Context(), ipam.AddressRequest{Address: address, Handle: "h", Host: "n1"}); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Second) // creation timestamps have whole seconds
	f.create("ippools", "IPPool", "inside", `{"cidr":"10.7.0.0/25"}`)
	calicotest.Eventually(t, "a pool inside of another one cannot be used", func() bool {
		return f.has("ippool/inside", `"reason": "CIDROverlap"`, `"status": "False"`)
	})
	if out, err := f.kubectl("delete", "ippool/inside", "--timeout=20s"); err != nil {
		t.Errorf("the deletion of a pool whose addresses are those of another one: %v: %s", err, out)
	}

	for _, o := range []string{"ippool/pods", "tier/web"} {
		if out, err := f.kubectl("delete", o, "--timeout=2s"); err == nil || !strings.Contains(out, "timed out") {
			t.Errorf("the deletion of %s, which is used, does not wait: %v: %s", o, err, out)
		}
	}
	if err := a.AssignIP(t.Context(), ipam.AddressRequest{Address: netip.MustParseAddr("10.7.0.21"), Handle: "h2",
		Host: "n1"}); err == nil {
		t.Error("an address of a pool that is being deleted was assigned")
	}
	given, err := a.AutoAssign(t.Context(), ipam.Request{Host: "n1", Num4: 1, Handle: "h3", Use: "Workload"})
	if err == nil && len(given.V4.Addresses) > 0 {
		t.Errorf("addresses of a pool that is being deleted were assigned: %v", given.V4.Addresses)
	}
	calicotest.Eventually(t, "the conditions say it", func() bool {
		return f.has("ippool/pods", `"reason": "Terminating"`) && f.has("tier/web", `"reason": "Terminating"`,
			`"message": "the deletion of the tier waits for the deletion of 1 policy"`, `"status": "False"`)
	})

	if _, err := a.ReleaseIPs(t.Context(), ipam.Release{Address: address}); err != nil {
		t.Fatal(err)
	}
	if out, err := f.kubectl("delete", "globalnetworkpolicy/web.deny"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, o := range []string{"ippool/pods", "tier/web"} {
		if out, err := f.kubectl("wait", "--for=delete", o, "--timeout=30s"); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	}
}

// Where Manx leaves a cluster, the finalizers go, when its controllers have ended. They are left to
// calico-kube-controllers where those run.
func TestLeave(t *testing.T) {
	t.Parallel()
	f := newFinalized(t)
	stop := f.start()
	defer func() { stop() }()
	f.create("ippools", "IPPool", "pods", `{"cidr":"10.7.0.0/24"}`)
	f.create("tiers", "Tier", "web", `{"order":5}`)
	given := func() bool { return f.has("ippool/pods", poolFinalizer) && f.has("tier/web", tierFinalizer) }
	calicotest.Eventually(t, "the finalizers", given)

	short, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if n, _, err := f.manager("second").Leave(short); err == nil || n != 0 {
		t.Errorf("%d finalizers were removed while the controllers run, which give them again: %v", n, err)
	}

	const deployments = "/apis/apps/v1/namespaces/kube-system/deployments"
	f.api.Request(t, http.MethodPost, deployments, []byte(`{"apiVersion":"apps/v1","kind":"Deployment","metadata":{
		"name":"calico-kube-controllers","labels":{"k8s-app":"calico-kube-controllers"}},"spec":{
		"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[
		{"name":"c","image":"i"}]}}}}`))
	time.Sleep(time.Second) // the controllers rest
	f.create("ippools", "IPPool", "later", `{"cidr":"10.8.0.0/24"}`)
	time.Sleep(time.Second) // a finalizer would come sooner
	if f.has("ippool/later", poolFinalizer) {
		t.Error("a finalizer was given beside calico-kube-controllers")
	}
	stop()
	if n, others, err := f.manager("second").Leave(t.Context()); err != nil || n != 0 ||
		!strings.Contains(others, "calico-kube-controllers") || !given() {
		t.Errorf("beside calico-kube-controllers %d finalizers were removed: %q, %v", n, others, err)
	}
	f.api.Request(t, http.MethodDelete, deployments+"/calico-kube-controllers", nil)

	// One deletion waits.
	if err := ipam.New(f.store, zap.NewNop(), time.Now).AssignIP(t.Context(), ipam.AddressRequest{
		Address: netip.MustParseAddr("10.7.0.20"), Handle: "h", Host: "n1"}); err != nil {
		t.Fatal(err)
	}
	if out, err := f.kubectl("delete", "ippool/pods", "--wait=false"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	// A second candidate would lead afterwards, and give them again. Its pod ends a moment later.
	remove := f.pod("manx-controllers", "manx-controllers")
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		time.Sleep(time.Second) // Leave leads
		waiting := f.start()
		time.Sleep(time.Second) // it waits
		waiting()
		remove()
	}()
	if n, _, err := f.manager("second").Leave(t.Context()); err != nil || n != 2 {
		t.Fatalf("%d finalizers were removed, want those of a pool and a tier: %v", n, err)
	}
	<-ended
	if given() {
		t.Error("the finalizers are there again")
	}
	for _, o := range []string{"ippool/pods", "ippool/later", "tier/web", "crd/ippools.projectcalico.org",
		"crd/tiers.projectcalico.org"} {
		if out, err := f.kubectl("delete", o, "--ignore-not-found", "--timeout=30s"); err != nil {
			t.Errorf("when Manx has gone: %v: %s", err, out)
		}
	}
}

// The finalizers stay while a pod is left: of Manx, or of calico-kube-controllers that nobody is to run any more.
func TestLeaveWaitsForPods(t *testing.T) {
	t.Parallel()
	f := newFinalized(t)
	f.api.Request(t, http.MethodPost, native+"ippools", fmt.Appendf(nil, `{"apiVersion":"projectcalico.org/v3",
		"kind":"IPPool","metadata":{"name":"pods","finalizers":[%q]},"spec":{"cidr":"10.7.0.0/24"}}`, poolFinalizer))
	for _, app := range []string{"manx-node", "manx-controllers", "calico-kube-controllers"} {
		remove := f.pod(app+"-x", app)
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		n, others, err := f.manager("second").Leave(short)
		cancel()
		if err == nil || n != 0 || others != "" || !f.has("ippool/pods", poolFinalizer) {
			t.Errorf("while a pod of %s ends, %d finalizers were removed: %q, %v", app, n, others, err)
		}
		remove()
	}
	if n, _, err := f.manager("second").Leave(t.Context()); err != nil || n != 1 {
		t.Errorf("%d finalizers were removed: %v", n, err)
	}
}

// Where other programs assign addresses (USE_POD_CIDR), blocks are not read. A deleted pool still ends.
func TestPoolsWithoutIPAM(t *testing.T) {
	t.Parallel()
	f := newFinalized(t)
	var err error
	f.store, err = kubernetes.OpenREST(t.Context(), kubernetes.Config{UsePodCIDR: true}, f.api.Config(apiserver.Admin),
		zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.store.Close() }) //nolint:errcheck // the test is over
	m := f.manager("first")
	m.NoIPAM = true
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = m.Run(ctx) }()
	defer func() { cancel(); <-done }()
	f.create("ippools", "IPPool", "pods", `{"cidr":"10.7.0.0/24"}`)
	calicotest.Eventually(t, "the finalizer", func() bool { return f.has("ippool/pods", poolFinalizer) })
	if out, err := f.kubectl("delete", "ippool/pods", "--timeout=20s"); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

// Where Manx has gone without that, the commands of the page end the deletions that wait. The finalizers of other
// programs stay.
func TestFinalizersByHand(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/kubernetes.md")
	if err != nil {
		t.Fatal(err)
	}
	const first = "kubectl get ippools.projectcalico.org,tiers.projectcalico.org "
	_, rest, ok := strings.Cut(string(page), "```sh\n"+first)
	command, _, also := strings.Cut(rest, "```")
	if !ok || !also {
		t.Fatal("docs/kubernetes.md has no commands that remove finalizers")
	}
	f := newFinalized(t)
	f.api.InstallCRDs(t, form.V1) // the names of the resources are ambiguous
	stop := f.start()
	f.create("ippools", "IPPool", "pods", `{"cidr":"10.7.0.0/24"}`)
	f.create("tiers", "Tier", "web", `{"order":5}`)
	f.create("tiers", "Tier", "bare", `{"order":6}`)
	const pool, tier, bare = "ippools.projectcalico.org/pods", "tiers.projectcalico.org/web",
		"tiers.projectcalico.org/bare"
	calicotest.Eventually(t, "the finalizers", func() bool {
		return f.has(pool, poolFinalizer) && f.has(tier, tierFinalizer) && f.has(bare, tierFinalizer)
	})
	stop()
	for object, list := range map[string]string{tier: `["example.com/a","` + tierFinalizer + `","example.com/b"]`,
		bare: `null`} {
		if out, err := f.kubectl("patch", object, "--type=merge", "-p", `{"metadata":{"finalizers":`+list+`}}`); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	if out, err := f.kubectl("delete", pool, "--timeout=2s"); err == nil {
		t.Errorf("nobody removes the finalizer, and the pool is deleted: %s", out)
	}
	c := exec.Command("sh", "-c", first+command)
	c.Env = append(os.Environ(), "PATH="+apiserver.Programs()+":"+os.Getenv("PATH"),
		"KUBECONFIG="+f.api.Kubeconfig(t, apiserver.Admin))
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", command, err, out)
	}
	if out, err := f.kubectl("wait", "--for=delete", pool, "--timeout=20s"); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	if !f.has(tier, "example.com/a", "example.com/b") || f.has(tier, tierFinalizer) {
		t.Error("want the finalizers of other programs, and not that of Manx")
	}
}
