package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/manxnet/manx/integration/kubernetes/apiserver"
	"github.com/manxnet/manx/integration/lab"
	"github.com/manxnet/manx/integration/namespace"
)

// metalLB is a running program of MetalLB.
type metalLB struct {
	log string
	cmd *exec.Cmd
}

// runMetalLB starts MetalLB's controller or speaker on a node, with all rights.
func (w *world) runMetalLB(t *testing.T, name string, i int, args ...string) *metalLB {
	t.Helper()
	n := w.Nodes[i]
	kubeconfig := w.kubeconfig(t, n, name+".kubeconfig", w.lines[i].URL, apiserver.Token(apiserver.Admin), w.ca)
	x := &metalLB{log: filepath.Join(n.Dir, name+".log")}
	log, err := os.Create(x.log)
	must(t, err)
	x.cmd = namespace.Command(n.Namespace, filepath.Join(apiserver.Programs(), name), append([]string{
		"--kubeconfig=" + kubeconfig, "--namespace=metallb-system", "--log-level=debug"}, args...)...)
	x.cmd.Env = append(os.Environ(), "METALLB_BGP_TYPE=native", "METALLB_POD_NAME=speaker")
	x.cmd.Stdout, x.cmd.Stderr = log, log
	must(t, x.cmd.Start())
	t.Cleanup(func() {
		_ = x.cmd.Process.Kill()
		_ = x.cmd.Wait()
		_ = log.Close()
		if t.Failed() {
			raw, _ := os.ReadFile(x.log)
			t.Logf("end of the log of %s:\n%s", name, tail(string(raw), 40))
		}
	})
	return x
}

const metalLBObjects = `apiVersion: metallb.io/v1beta1
kind: IPAddressPool
metadata: {name: public, namespace: metallb-system}
spec: {addresses: [198.51.100.0/28]}
`

// session describes the session of a node's manxd with a peer.
func session(t *testing.T, n *lab.Node, peer string) string {
	t.Helper()
	out, err := n.Manxctl("get", "peers", peer, "--no-headers")
	must(t, err)
	return out
}

// TestBesideMetalLB runs MetalLB's real programs beside manxd. Its controller assigns the address of a Service, manxd
// has no pool for that, assigns none, and announces the address. Its speaker, if it is told to speak with a peer of
// manxd, takes the session away while it runs: two speakers with one address cannot share a peer.
func TestBesideMetalLB(t *testing.T) {
	for _, name := range []string{"metallb-controller", "metallb-speaker"} {
		if _, err := os.Stat(filepath.Join(apiserver.Programs(), name)); err != nil {
			t.Skipf("%s is not built: run make kubernetes-programs", name)
		}
	}
	w := newWorld(t)
	w.settle(t)
	definitions, err := os.ReadFile(filepath.Join(apiserver.Programs(), "metallb-crds.yaml"))
	must(t, err)
	kubectl := func(input string) {
		t.Helper()
		cmd := exec.Command(filepath.Join(apiserver.Programs(), "kubectl"), "--kubeconfig",
			w.server.Kubeconfig(t, apiserver.Admin), "apply", "--server-side", "-f", "-")
		cmd.Stdin = strings.NewReader(input)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	kubectl(string(definitions))
	w.server.Request(t, http.MethodPost, "/api/v1/namespaces", map[string]any{
		"metadata": map[string]any{"name": "metallb-system"}})
	until(t, "MetalLB's kinds are served", func() error {
		_, err := w.server.Try(t.Context(), t, http.MethodGet, "/apis/metallb.io/v1beta1/ipaddresspools", nil)
		return err
	})
	kubectl(metalLBObjects)
	w.runMetalLB(t, "metallb-controller", 0, "--webhook-mode=disabled", "--disable-cert-rotation", "--port=7473")

	// MetalLB assigns, and manxd announces.
	w.server.Request(t, http.MethodPatch, crds+"bgpconfigurations/default", map[string]any{"spec": map[string]any{
		"serviceLoadBalancerAggregation": "Disabled",
		"serviceLoadBalancerIPs":         []any{map[string]any{"cidr": "198.51.100.0/28"}}}})
	w.server.Request(t, http.MethodPost, services, map[string]any{"metadata": map[string]any{"name": "shop"},
		"spec": map[string]any{"type": "LoadBalancer", "externalTrafficPolicy": "Local",
			"ports": []any{map[string]any{"port": 7}}}})
	s := slice("shop-1", "shop", 7, w.a)
	s["endpoints"].([]any)[0].(map[string]any)["nodeName"] = "n1"
	w.putSlice(t, "default", s)
	address := ""
	until(t, "the Service has an address", func() error {
		var service struct {
			Metadata struct{ Annotations map[string]string }
			Status   struct {
				LoadBalancer struct{ Ingress []struct{ IP string } }
			}
		}
		must(t, json.Unmarshal(w.server.Request(t, http.MethodGet, services+"/shop", nil), &service))
		if len(service.Status.LoadBalancer.Ingress) == 0 {
			return errors.New("none")
		}
		address = service.Status.LoadBalancer.Ingress[0].IP
		if pool := service.Metadata.Annotations["metallb.io/ip-allocated-from-pool"]; pool != "public" {
			t.Errorf("%s is not of MetalLB's pool: %v", address, service.Metadata.Annotations)
		}
		return nil
	})
	n2 := w.n2.IP4.String()
	until(t, "manxd of n1 announces it", func() error {
		out, err := w.n1.Manxctl("routes", "--advertised-to", n2)
		if err == nil && !strings.Contains(out, address+"/32") {
			err = fmt.Errorf("%s is not announced:\n%s", address, out)
		}
		return err
	})
	if out, err := w.n1.Manxctl("ipam", "show", "--ip", address); err == nil {
		t.Errorf("an address of MetalLB's pool is one of Manx: %s", out)
	}

	for _, n := range w.Nodes {
		for line := range strings.Lines(n.Log()) {
			if strings.Contains(line, "WARN\tcontrollers.loadbalancer") {
				t.Errorf("that MetalLB assigns is no fault: %s", line)
			}
		}
	}

	// A second speaker on the node takes the session with a peer away: for the peer the node has restarted.
	if out := session(t, w.n1, n2); !strings.Contains(out, "Established") {
		t.Fatalf("the session of manxd: %s", out)
	}
	kubectl(`apiVersion: metallb.io/v1beta2
kind: BGPPeer
metadata: {name: n2, namespace: metallb-system}
spec: {myASN: 64512, peerASN: 64512, peerAddress: ` + n2 + `, sourceAddress: ` + w.n1.IP4.String() + `}
---
apiVersion: metallb.io/v1beta1
kind: BGPAdvertisement
metadata: {name: public, namespace: metallb-system}
`)
	w.server.Request(t, http.MethodPost, podsOf("metallb-system"), map[string]any{ // which the speaker reads
		"metadata": map[string]any{"name": "speaker"}, "spec": map[string]any{"nodeName": "n1",
			"containers": []any{map[string]any{"name": "speaker", "image": "speaker"}}}})
	speaker := w.runMetalLB(t, "metallb-speaker", 0, "--node-name=n1", "--host="+w.n1.IP4.String(), "--port=7474")
	until(t, "MetalLB has the session", func() error {
		if out := session(t, w.n1, n2); strings.Contains(out, "Established") {
			return errors.New(out)
		}
		raw, err := os.ReadFile(speaker.log)
		if err == nil && !bytes.Contains(raw, []byte(`"event":"sessionUp"`)) {
			err = errors.New("no session")
		}
		return err
	})
	if out := session(t, w.n2, w.n1.IP4.String()); !strings.Contains(out, "Established") {
		t.Errorf("the session of the peer: %s", out)
	}
	must(t, speaker.cmd.Process.Kill())
	until(t, "manxd has the session again", func() error {
		if out := session(t, w.n1, n2); !strings.Contains(out, "Established") {
			return errors.New(out)
		}
		return nil
	})
	w.connected(t)
}
