package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/ipam"
)

// TestNodeMadeAgain: the Node of n2 is deleted under its daemon and created again, as a kubelet does. Calico's fields
// on the Node come back, with the same tunnel address. Blocks and pods keep their addresses.
func TestNodeMadeAgain(t *testing.T) {
	w := newWorld(t)
	pool := map[string]any{"kind": "IPPool", "apiVersion": "crd.projectcalico.org/v1",
		"metadata": map[string]any{"name": "tunnelled"}, "spec": map[string]any{"cidr": "10.10.0.0/16",
			"ipipMode": "CrossSubnet", "blockSize": 26, "nodeSelector": "all()",
			"allowedUses": []string{"Workload", "Tunnel"}}}
	w.server.Request(t, http.MethodPost, "/apis/crd.projectcalico.org/v1/ippools", pool)
	// No controllers: they release the tunnel address of a Node that stays away, and the next one is another.
	must(t, w.n1.StartManxd(append(w.arguments(0), "--as=64513", "--controllers=off")...))
	w.annotateNode(t, "n2", map[string]any{"projectcalico.org/ASNumber": "64514"}) // of which no daemon is notified
	must(t, w.n2.StartManxd(append(w.arguments(1), "--controllers=off")...))
	w.ready(t)
	w.a, w.b = w.addPod(t, w.n1, "a"), w.addPod(t, w.n2, "b")
	w.a.echo(t, 7)
	w.b.echo(t, 7)
	w.connected(t)
	var before string
	until(t, "the addresses of n2", func() (err error) {
		before, err = w.identity(t, "n2")
		return err
	})
	routes := kernelState(t, w.n1)
	for _, how := range []string{"made again at once", "made again after a while"} {
		t.Run(how, func(t *testing.T) {
			w.server.Request(t, http.MethodDelete, "/api/v1/nodes/n2", nil)
			if how != "made again at once" {
				until(t, "n1 has seen that it is gone", func() error {
					out, err := w.n1.Manxctl("get", "nodes", "-o", "name")
					if err != nil || strings.Contains(out, "n2") {
						return fmt.Errorf("%s %w", out, err)
					}
					return nil
				})
			}
			w.addNode(t, "n2")
			until(t, "n2 as it was", func() error {
				now, err := w.identity(t, "n2")
				if err == nil && now != before {
					err = fmt.Errorf("it was\n%s\nand is\n%s", before, now)
				}
				return err
			})
			w.ready(t)
			w.connected(t)
			until(t, "n1's routes and rules", func() error {
				if now := kernelState(t, w.n1); now != routes {
					return fmt.Errorf("were\n%s\nand are\n%s", routes, now)
				}
				return nil
			})
		})
	}
}

// identity is a node's state for others: AS number, addresses, tunnel address, blocks, and the addresses of its pods
// with their handles. It is an error while the node has no tunnel address, or two.
func (w *world) identity(t *testing.T, name string) (string, error) {
	t.Helper()
	o, err := w.store.Get(t.Context(), model.ResourceKey(model.KindNode, name))
	if err != nil {
		return "", err
	}
	n, ok := o.Value.(*model.Node)
	if !ok || n.Spec.BGP == nil || n.Spec.BGP.ASNumber == nil || n.Spec.BGP.IPv4IPIPTunnelAddr == "" {
		return "", fmt.Errorf("%s is not set up: %+v", name, o.Value)
	}
	tunnel := n.Spec.BGP.IPv4IPIPTunnelAddr
	lines := []string{fmt.Sprintf("AS %d, %s, tunnel %s", *n.Spec.BGP.ASNumber, n.Spec.BGP.IPv4Address, tunnel)}
	affinities, _, err := w.store.List(t.Context(), model.KindBlockAffinity, "")
	if err != nil {
		return "", err
	}
	for _, a := range affinities {
		if strings.Contains(a.Key.Name, name) {
			spec, err := json.Marshal(a.Value)
			if err != nil {
				return "", err
			}
			lines = append(lines, fmt.Sprintf("affinity %s: %s", a.Key.Name, spec))
		}
	}
	handles, err := ipam.New(w.store, zap.NewNop(), time.Now).HostHandles(t.Context(), name)
	if err != nil {
		return "", err
	}
	tunnels := 0
	for handle, attributes := range handles {
		ips, err := ipam.New(w.store, zap.NewNop(), time.Now).IPsByHandle(t.Context(), handle)
		if err != nil {
			return "", err
		}
		if attributes["type"] == "ipipTunnelAddress" {
			tunnels++
			if len(ips) != 1 || ips[0].String() != tunnel {
				return "", fmt.Errorf("the tunnel address is %s, and IPAM has %v", tunnel, ips)
			}
		}
		lines = append(lines, fmt.Sprintf("handle %s: %v", handle, ips))
	}
	if tunnels != 1 {
		return "", errors.New(fmt.Sprint(tunnels, " tunnel addresses: ", handles))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n"), nil
}
