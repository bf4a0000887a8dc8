package deletions_test

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/manxnet/manx/controllers/calicotest"
	"github.com/manxnet/manx/controllers/deletions"
	"github.com/manxnet/manx/controllers/loop"
	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/kubernetes"
	"github.com/manxnet/manx/datastore/kubernetes/form"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/integration/kubernetes/apiserver"
	"github.com/manxnet/manx/ipam"
)

const calico = "/apis/projectcalico.org/v3/"

// `kubectl delete` of a pool and a tier that have the finalizers of calico-kube-controllers ends when no address is
// assigned and no policy is left, not before. A condition that they have left follows the pool.
func TestDeletionsEnd(t *testing.T) {
	t.Parallel()
	api := apiserver.Start(t)
	api.InstallCRDs(t, form.V3)
	s, err := kubernetes.OpenREST(t.Context(), kubernetes.Config{}, api.Config(apiserver.Admin), zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() }) //nolint:errcheck // the test is over
	create := func(plural, kind, name, finalizer, spec string) {
		api.Request(t, http.MethodPost, calico+plural, fmt.Appendf(nil, `{"apiVersion":"projectcalico.org/v3","kind":%q,
			"metadata":{"name":%q,"finalizers":[%q]},"spec":%s}`, kind, name, finalizer, spec))
	}
	create("ippools", "IPPool", "old", "projectcalico.org/ippool-finalizer", `{"cidr":"10.7.0.0/24"}`)
	create("ippools", "IPPool", "younger", "projectcalico.org/ippool-finalizer", `{"cidr":"10.7.0.0/25"}`)
	create("tiers", "Tier", "old", "projectcalico.org/tier-controller", `{"order":5}`)
	create("globalnetworkpolicies", "GlobalNetworkPolicy", "old.deny", "example.com/none", `{"tier":"old"}`)
	api.Request(t, http.MethodPatch, calico+"globalnetworkpolicies/old.deny", []byte(`{"metadata":{"finalizers":null}}`))
	for _, pool := range []string{"old", "younger"} {
		api.Request(t, http.MethodPatch, calico+"ippools/"+pool+"/status", []byte(`{"status":{"conditions":[{"type":
			"Allocatable","status":"False","reason":"Was","message":"","lastTransitionTime":"2026-01-01T00:00:00Z"}]}}`))
	}

	c := &deletions.Controller{Store: s, Now: time.Now}
	kinds, _ := c.Kinds()
	tables, none := datastore.NewTables(zap.NewNop(), ""), datastore.NewTables(zap.NewNop(), "")
	none.Apply(datastore.Event{Type: datastore.EventInSync})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { _ = tables.Run(ctx, s, kinds...) }()
	r := &loop.Runner{Controller: c, Store: s, Log: zap.NewNop()}
	go func() { _ = r.Run(ctx, tables, none) }()

	pool := func(name string) string {
		raw, _ := api.Try(t.Context(), t, http.MethodGet, calico+"ippools/"+name, nil)
		return string(raw)
	}
	calicotest.Eventually(t, "addresses can be assigned", func() bool { return strings.Contains(pool("old"), `"True"`) })
	if now := pool("younger"); !strings.Contains(now, `"False"`) {
		t.Errorf("a pool that overlaps an older one can be used: %s", now)
	}
	a := ipam.New(s, zap.NewNop(), time.Now)
	address := netip.MustParseAddr("10.7.0.200")
	if err := a.AssignIP(t.Context(), ipam.AddressRequest{Address: address, Handle: "h", Host: "n1"}); err != nil {
		t.Fatal(err)
	}
	kubectl := func(args ...string) ([]byte, error) {
		return exec.Command(filepath.Join(apiserver.Programs(), "kubectl"), append(args, "--kubeconfig",
			api.Kubeconfig(t, apiserver.Admin))...).CombinedOutput()
	}
	if out, err := kubectl("delete", "ippool/old", "tier/old", "--wait=false"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	calicotest.Eventually(t, "nothing more is assigned", func() bool {
		return strings.Contains(pool("old"), `"Terminating"`)
	})
	// The watch of blocks may be behind that of pools.
	deleted, err := s.Get(t.Context(), model.ResourceKey(model.KindIPPool, "old"))
	if err != nil {
		t.Fatal(err)
	}
	early := c.Decide(loop.State{Store: model.NewSet(deleted)}, c.All(loop.State{})[0])
	if len(early) != 1 {
		t.Fatalf("decisions without blocks: %v", early)
	}
	if done, err := early[0].Apply(t.Context(), s); done || err != nil {
		t.Errorf("a pool with an address was released: %t, %v", done, err)
	}
	if raw, err := api.Try(t.Context(), t, http.MethodGet, calico+"tiers/old", nil); err != nil {
		t.Errorf("a tier with a policy is gone: %v: %s", err, raw)
	}
	if _, err := a.ReleaseIPs(t.Context(), ipam.Release{Address: address}); err != nil {
		t.Fatal(err)
	}
	api.Request(t, http.MethodDelete, calico+"globalnetworkpolicies/old.deny", nil)
	for _, o := range []string{"ippool/old", "tier/old"} {
		if out, err := kubectl("wait", "--for=delete", o, "--timeout=30s"); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	}
	calicotest.Eventually(t, "the other pool takes over", func() bool { return strings.Contains(pool("younger"), `"True"`) })
}
