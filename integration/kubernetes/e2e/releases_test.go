package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	"go.uber.org/zap"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/manxnet/manx/controllers/settings"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/integration/lab"
	"github.com/manxnet/manx/ipam"
)

// TestReleases: an administrator lists the released addresses with reasons, on the leader's node and on the other one.
func TestReleases(t *testing.T) {
	w := newWorld(t)
	config := settings.Default()
	config.Spec.Controllers.Node.LeakGracePeriod = &metav1.Duration{Duration: time.Second}
	_, err := w.store.Create(t.Context(), model.NewObject(model.ResourceKey(model.KindKubeControllers, "default"),
		config))
	must(t, err)
	w.start(t)
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
}

// releases is the output of the command on a node.
func releases(n *lab.Node, args ...string) string {
	out, err := n.Manxctl(append([]string{"ipam", "releases"}, args...)...)
	if err != nil {
		out += err.Error()
	}
	return out
}
