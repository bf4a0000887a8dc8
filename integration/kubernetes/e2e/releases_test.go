package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	"go.uber.org/zap"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/manxnet/manx/controllers/settings"
	"github.com/manxnet/manx/datastore/kubernetes/form"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/integration/kubernetes/apiserver"
	"github.com/manxnet/manx/integration/kubernetes/twonodes"
	"github.com/manxnet/manx/integration/lab"
	"github.com/manxnet/manx/ipam"
)

// TestReleases: an administrator lists the released addresses with reasons, on the leader's node and on the other one.
// The cluster has the definitions that Manx ships, and no others.
func TestReleases(t *testing.T) {
	w := newWorld(t, "none")
	w.installShipped(t)
	config := settings.Default()
	config.Spec.Controllers.Node.LeakGracePeriod = &metav1.Duration{Duration: time.Second}
	_, err := w.store.Create(t.Context(), model.NewObject(model.ResourceKey(model.KindKubeControllers, "default"),
		config))
	must(t, err)
	w.start(t)
	w.nothingToReport(t)
	const peers = "/apis/projectcalico.org/v3/bgppeers"
	w.server.Request(t, http.MethodPost, peers, map[string]any{"kind": "BGPPeer",
		"apiVersion": "projectcalico.org/v3", "metadata": map[string]any{"name": "tor"},
		"spec": map[string]any{"peerSelector": "has("}})
	w.server.Request(t, http.MethodPost, "/apis/projectcalico.org/v3/globalnetworkpolicies", map[string]any{
		"kind": "GlobalNetworkPolicy", "apiVersion": "projectcalico.org/v3",
		"metadata": map[string]any{"name": "nowhere.deny"}, "spec": map[string]any{"tier": "nowhere"}})
	r, err := ipam.New(w.store, zap.NewNop(), time.Now).AutoAssign(t.Context(), ipam.Request{Host: w.n2.Name, Num4: 1,
		Handle: "k8s-pod-network.sandbox", Use: v3.IPPoolAllowedUseWorkload,
		Attrs: map[string]string{"node": w.n2.Name, "namespace": "default", "pod": "crashed"}})
	must(t, err)
	address := r.V4.Addresses[0].Addr().String()

	leader, other := w.n1, w.n2
	until(t, "the address is released", func() error {
		for _, n := range w.Nodes {
			if out := releases(n); strings.Contains(out, address) {
				leader = n
				return nil
			}
		}
		return errors.New(releases(w.n1) + releases(w.n2))
	})
	if leader == w.n2 {
		other = w.n1
	}
	out := releases(leader)
	for _, want := range []string{"RELEASED", w.n2.Name, "k8s-pod-network.sandbox",
		"pod default/crashed does not exist"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is missing in\n%s", want, out)
		}
	}
	want := fmt.Sprintf("Node %s does not run the controllers of the cluster, node %s does", other.Name, leader.Name)
	until(t, "the other node names the leader", func() error {
		if out := releases(other); !strings.Contains(out, want) || strings.Contains(out, address) {
			return errors.New(out)
		}
		return nil
	})
	var response struct {
		Leading  bool
		Releases []struct{ Address, Reason, Text, Pod string }
	}
	raw := releases(leader, "-o", "json")
	must(t, json.Unmarshal([]byte(raw), &response))
	if len(response.Releases) != 1 || !response.Leading || response.Releases[0].Reason != "pod-gone" ||
		response.Releases[0].Address != address || response.Releases[0].Pod != "crashed" {
		t.Errorf("as JSON: %s", raw)
	}

	// The leader ends: the other one takes over, and reports no releases so far.
	must(t, leader.Manxd().Stop(patience))
	until(t, "the other node leads", func() error {
		if out := releases(other); !strings.Contains(out, "released nothing so far") {
			return errors.New(out)
		}
		return nil
	})

	until(t, "one Event about the object that cannot be used", func() error {
		return w.described(t, "bgppeer/tor", "ObjectQuarantined", `spec.peerSelector = "has("`)
	})
	until(t, "one Event about the object that breaks a rule", func() error {
		return w.described(t, "gnp/nowhere.deny", "ObjectInvalid", `spec.tier = "nowhere": must be a tier that exists`)
	})

	// Policies that Calico may have enforced, and Manx does not read.
	const group, version, kind = "policy.networking.k8s.io", "v1alpha1", "AdminNetworkPolicy"
	w.server.Define(t, form.Resource{Group: group, Version: version, Plural: "adminnetworkpolicies", Kind: kind})
	w.apply(t, "/apis/"+group+"/"+version+"/adminnetworkpolicies", map[string]any{"kind": kind,
		"apiVersion": group + "/" + version, "metadata": map[string]any{"name": "deny-all"}})
	must(t, leader.StartManxd())
	t.Log(awaitStatus(t, leader, `adminnetworkpolicies.policy.networking.k8s.io of version v1alpha1, such as "deny-all", `+
		`are not read`))
}

// described checks that kubectl describe shows one Event of a reason, with a text.
func (w *world) described(t *testing.T, object, reason, text string) error {
	t.Helper()
	out, err := exec.Command(filepath.Join(apiserver.Programs(), "kubectl"), "--kubeconfig",
		w.server.Kubeconfig(t, apiserver.Admin), "describe", object).CombinedOutput()
	if err != nil || strings.Count(string(out), reason) != 1 || !strings.Contains(string(out), text) {
		return fmt.Errorf("kubectl: %v: %s", err, out)
	}
	return nil
}

// installShipped installs the definitions that Manx ships.
func (w *world) installShipped(t *testing.T) {
	t.Helper()
	raw, err := os.ReadFile("../../../deploy/manifests/manx-crds.yaml")
	must(t, err)
	for _, doc := range twonodes.Documents(t, string(raw)) {
		w.server.Request(t, http.MethodPost, definitions, doc)
	}
	w.server.InstallCRDs(t, form.V3) // waits until they are served
}

// nothingToReport checks that a stock installation has no notices and no warnings.
func (w *world) nothingToReport(t *testing.T) {
	t.Helper()
	for _, n := range w.Nodes {
		if out := status(n); strings.Contains(out, "Notice") {
			t.Errorf("%s has notices:\n%s", n.Name, out)
		}
		if page, err := n.Get("/metrics"); err != nil || !strings.Contains(page, "\nmanx_notices 0\n") {
			t.Errorf("%s has notices by its metrics: %v", n.Name, err)
		}
		for line := range strings.Lines(n.Log()) {
			// The node that starts first finds nothing at the other one, or a speaker that has no session yet. A busy
			// machine needs more than the 5 s that a start has before manxd logs which checks fail.
			if (strings.Contains(line, "\tWARN\t") || strings.Contains(line, "\tERROR\t")) &&
				!strings.Contains(line, "the node is not ready") &&
				!strings.Contains(line, "connection refused by 10.200.1.") &&
				!strings.Contains(line, "closed the connection before it sent an OPEN") {
				t.Errorf("%s logs %s", n.Name, line)
			}
		}
	}
}

// releases is the output of the command on a node.
func releases(n *lab.Node, args ...string) string {
	out, err := n.Manxctl(append([]string{"ipam", "releases"}, args...)...)
	if err != nil {
		out += err.Error()
	}
	return out
}
