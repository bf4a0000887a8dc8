package cluster

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/manxnet/manx/integration/kubernetes/lab"
	hosts "github.com/manxnet/manx/integration/lab"
)

// TestCluster runs all steps with the shipped image and chart, and a minute of the soak.
func TestCluster(t *testing.T) {
	binaries(t)
	install, err := Shipped("../../..", Network{BGP, lab.IPv4}, false)
	if err != nil {
		t.Skip(err)
	}
	all := Steps(install.Network())
	update := slices.IndexFunc(all, func(s Step) bool { return strings.HasPrefix(s.Name, "update") })
	s := soakPlan{seed: soakSeed(t), duration: time.Minute, apart: crashesApart}
	run(t, install, slices.Insert(all, update, s.step()))
}

// TestManifests installs without Helm. With MANX_CLUSTER=vxlan the cluster has VXLAN in place of BGP, and pods and
// Services of both families.
func TestManifests(t *testing.T) {
	binaries(t)
	network := Network{BGP, lab.IPv4}
	if os.Getenv("MANX_CLUSTER") == "vxlan" {
		network = Network{VXLAN, lab.Dual}
	}
	install, err := Manifests("../../..", network)
	if err != nil {
		t.Skip(err)
	}
	run(t, install, shortSteps(network))
}

// TestIPv6Alone installs the chart where nothing has an address of IPv4, with VXLAN. It runs only if -run names it.
func TestIPv6Alone(t *testing.T) {
	binaries(t)
	if os.Getenv("MANX_CLUSTER") != "ipv6" {
		t.Skip("run it with MANX_CLUSTER=ipv6")
	}
	network := Network{VXLAN, lab.IPv6}
	install, err := Shipped("../../..", network, false)
	if err != nil {
		t.Skip(err)
	}
	run(t, install, shortSteps(network))
}

// TestByHand runs the steps with its own DaemonSet and image, and the etcd datastore. It shows whether the chart and
// the image cause a failure above, or Manx. It runs only if -run names it.
func TestByHand(t *testing.T) {
	bin := binaries(t)
	if os.Getenv("MANX_CLUSTER") != "by-hand" {
		t.Skip("run it with MANX_CLUSTER=by-hand")
	}
	run(t, byHand{bin}, Steps(byHand{}.Network()))
}

// TestAway ends the API server for MANX_AWAY, such as 10m or 1h. It runs if MANX_AWAY is set.
func TestAway(t *testing.T) {
	if os.Getenv("MANX_AWAY") == "" {
		t.Skip("how long is the API server away? Set MANX_AWAY=10m")
	}
	binaries(t)
	install, err := Shipped("../../..", Network{BGP, lab.IPv4}, false)
	if err != nil {
		t.Skip(err)
	}
	begin := Steps(install.Network())[:4:4]
	run(t, install, append(begin, interruptions()...))
}

func binaries(t *testing.T) string {
	t.Helper()
	if os.Getenv("MANX_CLUSTER") == "" {
		t.Skip("a cluster wants the machine for itself: run `make test-cluster`")
	}
	bin, missing := hosts.Require()
	if missing == nil {
		_, missing = lab.Require()
	}
	if missing != nil {
		t.Skip(missing)
	}
	return bin
}

// run makes a subtest of each step. A failure ends the run.
func run(t *testing.T, install Installation, steps []Step) {
	t.Helper()
	w, err := New(fmt.Sprintf("k%d", os.Getpid()%1e6), install, t.Output())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(w.Describe())
		}
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	for _, s := range steps {
		if _, ok := install.(byHand); ok && strings.Contains(s.Name, "NetworkPolicy") {
			continue
		}
		if !t.Run(s.Name, func(t *testing.T) {
			w.out = t.Output()
			if err := s.Do(w); err != nil {
				t.Fatal(err)
			}
		}) {
			return
		}
	}
}
