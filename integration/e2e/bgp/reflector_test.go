package bgp

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/manxnet/manx/integration/e2e/world"
	"github.com/manxnet/manx/integration/lab"
	"github.com/manxnet/manx/integration/namespace"
)

const reflectorPeers = `
apiVersion: projectcalico.org/v3
kind: BGPPeer
metadata: {name: workers-to-reflectors}
spec: {nodeSelector: "!has(rr)", peerSelector: has(rr)}
---
apiVersion: projectcalico.org/v3
kind: BGPPeer
metadata: {name: between-reflectors}
spec: {nodeSelector: has(rr), peerSelector: has(rr)}
`

const meshOff = `
apiVersion: projectcalico.org/v3
kind: BGPConfiguration
metadata: {name: default}
spec: {nodeToNodeMeshEnabled: false}
`

// reflected is a rack of workers and two reflectors, each of which runs Manx or BIRD. The first worker has the
// datastore.
type reflected struct {
	*cluster
	workers []*lab.Node
	r       [2]*lab.Node
	program [2]string // "manx" or "bird"
	id      [2]string // cluster IDs
	bird    [2]*exec.Cmd
}

func newReflected(t *testing.T, prefix string, workers int, program, id [2]string) *reflected {
	t.Helper()
	spec := lab.Spec{Name: world.LabName(prefix), PlainRouters: true}
	for i := range workers {
		spec.Nodes = append(spec.Nodes, lab.NodeSpec{Name: fmt.Sprintf("w%d", i+1)})
	}
	spec.Nodes = append(spec.Nodes, lab.NodeSpec{Name: "r1"}, lab.NodeSpec{Name: "r2"})
	l := world.NewLab(t, spec)
	x := &reflected{cluster: &cluster{&world.Cluster{Lab: l, N1: l.Nodes[0], Pods: map[string]*lab.Pod{}}},
		workers: l.Nodes[:workers],
		r:       [2]*lab.Node{l.Nodes[workers], l.Nodes[workers+1]}, program: program, id: id}
	must(t, x.N1.StartManxd(append(x.N1.EmbedDatastore(), "--no-default-pools", "--ip=autodetect")...))
	must(t, x.N1.Ready(limit))
	must(t, x.N1.Apply(fmt.Sprintf("apiVersion: projectcalico.org/v3\nkind: IPPool\nmetadata: {name: pods4}\n"+
		"spec: {cidr: %s, blockSize: 28, ipipMode: Never, natOutgoing: false}\n---%s", world.Pool4, reflectorPeers)))
	x.Etcd = world.DialEtcd(t, x.N1)
	return x
}

func (x *reflected) start(t *testing.T, nodes ...*lab.Node) {
	t.Helper()
	for _, n := range nodes {
		must(t, n.StartManxd(append(lab.UseDatastore(x.N1), "--no-default-pools", "--ip=autodetect")...))
	}
	for _, n := range nodes {
		must(t, n.Ready(2*limit))
	}
}

// makeReflector sets the label and the cluster ID of a node, and starts BIRD if the node runs BIRD.
func (x *reflected) makeReflector(t *testing.T, i int) {
	t.Helper()
	n := x.r[i]
	if x.program[i] == "bird" {
		must(t, x.N1.Apply(fmt.Sprintf("apiVersion: projectcalico.org/v3\nkind: Node\n"+
			"metadata: {name: %s, labels: {rr: yes-it-is}}\n"+
			"spec: {bgp: {ipv4Address: %s/24, routeReflectorClusterID: %s}}\n", n.Name, n.IP4, x.id[i])))
		x.startReflectorBIRD(t, i)
		return
	}
	key := "/calico/resources/v3/projectcalico.org/nodes/" + n.Name
	for {
		r, err := x.Etcd.Get(t.Context(), key)
		must(t, err)
		var node map[string]any
		must(t, json.Unmarshal(r.Kvs[0].Value, &node))
		node["metadata"].(map[string]any)["labels"] = map[string]any{"rr": "yes-it-is"}
		node["spec"].(map[string]any)["bgp"].(map[string]any)["routeReflectorClusterID"] = x.id[i]
		raw, err := json.Marshal(node)
		must(t, err)
		done, err := x.Etcd.Txn(t.Context()).If(clientv3.Compare(clientv3.ModRevision(key), "=",
			r.Kvs[0].ModRevision)).Then(clientv3.OpPut(key, string(raw))).Commit()
		must(t, err)
		if done.Succeeded {
			return
		}
	}
}

func (x *reflected) startReflectorBIRD(t *testing.T, i int) {
	t.Helper()
	n, other := x.r[i], x.r[1-i]
	var conf strings.Builder
	fmt.Fprintf(&conf, "log stderr all;\nrouter id %s;\nprotocol device {}\nprotocol direct { ipv4; }\n", n.IP4)
	fmt.Fprintf(&conf, "template bgp calico { local %s as 64512; multihop; graceful restart; connect delay time 2; "+
		"connect retry time 5; error wait time 5, 30;\n"+
		"  ipv4 { import all; export where source = RTS_BGP; gateway recursive; add paths on; }; }\n", n.IP4)
	client := "rr client; rr cluster id " + x.id[i] + ";"
	for _, w := range x.workers {
		fmt.Fprintf(&conf, "protocol bgp %s from calico { neighbor %s as 64512; %s }\n", w.Name, w.IP4, client)
	}
	between := ""
	if x.id[0] != x.id[1] {
		between = client
	}
	fmt.Fprintf(&conf, "protocol bgp reflector from calico { neighbor %s as 64512; %s }\n", other.IP4, between)
	file := filepath.Join(n.Dir, "bird.conf")
	must(t, os.WriteFile(file, []byte(conf.String()), 0o644))
	cmd := namespace.Command(n.Namespace, "bird", "-f", "-R", "-c", file, "-s", filepath.Join(n.Dir, "bird.ctl"))
	must(t, cmd.Start())
	x.bird[i] = cmd
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
}

func (x *reflected) killReflector(i int) {
	if x.program[i] == "bird" {
		_ = x.bird[i].Process.Kill()
		_ = x.bird[i].Wait()
		return
	}
	x.r[i].Manxd().Kill()
}

func (x *reflected) restartReflector(t *testing.T, i int) {
	t.Helper()
	if x.program[i] == "bird" {
		x.startReflectorBIRD(t, i)
		return
	}
	must(t, x.r[i].StartManxd())
	must(t, x.r[i].Ready(limit))
}

// reflectedOnly waits until each worker has established sessions with the two reflectors, and no others.
func (x *reflected) reflectedOnly(t *testing.T) {
	t.Helper()
	for _, w := range x.workers {
		x.Established(t, w, 2)
	}
	x.reflect(t)
}

// reflect waits until each worker has the other workers' blocks from both reflectors: an established session may not
// have all routes yet, and BIRD sends none before all its clients are back.
func (x *reflected) reflect(t *testing.T) {
	t.Helper()
	of := map[*lab.Node][]netip.Prefix{}
	for _, w := range x.workers {
		of[w] = world.Blocks(t, w, "-4")
	}
	for _, w := range x.workers {
		for _, r := range x.r {
			eventually(t, func() error {
				text, err := w.Manxctl("routes", "--received-from", r.IP4.String())
				for owner, list := range of {
					for _, block := range list {
						if err == nil && w != owner && !strings.Contains(text, block.String()) {
							err = fmt.Errorf("%s has no %s of %s from %s:\n%s", w.Name, block, owner.Name, r.Name, text)
						}
					}
				}
				return err
			})
		}
	}
}

// learned waits until all workers except the owner have, or lack, a route to a block by the owner.
func (x *reflected) learned(t *testing.T, block netip.Prefix, owner *lab.Node, want bool) {
	t.Helper()
	for _, w := range x.workers {
		if w == owner {
			continue
		}
		eventually(t, func() error {
			found := world.Routes(t, w.Namespace, "-4", block.String(), "proto", "12")
			if len(found) > 0 != want || want && found[0].Gateway != owner.IP4.String() {
				return fmt.Errorf("%s: route for %s by %s wanted: %v, there are %v", w.Name, block, owner.IP4, want,
					found)
			}
			return nil
		})
	}
}

// TestReflectors moves a cluster from the mesh to two reflectors, loses each of them, and withdraws a route.
func TestReflectors(t *testing.T) {
	for i, tc := range []struct {
		name        string
		program, id [2]string
	}{
		{"Manx, one cluster", [2]string{"manx", "manx"}, [2]string{"10.0.0.1", "10.0.0.1"}},
		{"Manx, two clusters", [2]string{"manx", "manx"}, [2]string{"10.0.0.1", "10.0.0.2"}},
		{"BIRD, one cluster", [2]string{"bird", "bird"}, [2]string{"10.0.0.1", "10.0.0.1"}},
		{"Manx and BIRD, one cluster", [2]string{"manx", "bird"}, [2]string{"10.0.0.1", "10.0.0.1"}},
		{"Manx and BIRD, two clusters", [2]string{"manx", "bird"}, [2]string{"10.0.0.1", "10.0.0.2"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel() // each has a lab, and mostly waits for sessions and pings
			x := newReflected(t, "r"+string(rune('a'+i)), 3, tc.program, tc.id)
			x.start(t, x.workers[1:]...)
			for i, program := range tc.program {
				if program == "manx" {
					x.start(t, x.r[i])
				}
			}
			for _, w := range x.workers {
				p, err := w.AddPod(w.Name + "-p1")
				must(t, err)
				x.Pods[w.Name+"-p1"] = p
			}
			x.Reachable(t, "w1-p1", "w2-p1") // by the mesh
			x.Reachable(t, "w2-p1", "w3-p1")
			f := &world.Flows{}
			x.Flow(t, f, "w1-p1 to w2-p1", x.Pods["w1-p1"].Namespace, x.Pods["w2-p1"].IP4())
			x.Flow(t, f, "w3-p1 to w2-p1", x.Pods["w3-p1"].Namespace, x.Pods["w2-p1"].IP4())
			f.Run(t, 20)

			x.makeReflector(t, 0)
			x.makeReflector(t, 1)
			for _, w := range x.workers {
				x.Established(t, w, 4) // mesh and reflectors
			}
			x.reflect(t)
			must(t, x.N1.Apply(meshOff))
			x.reflectedOnly(t)
			f.Run(t, 30)

			for i := range x.r {
				x.killReflector(i)
				f.Run(t, 30)
				p, err := x.workers[2].AddPod(fmt.Sprintf("w3-extra%d", i))
				must(t, err)
				x.Pods[p.Name] = p
				x.Reachable(t, "w1-p1", p.Name)
				x.restartReflector(t, i)
				x.reflectedOnly(t)
				f.Run(t, 30)
			}
			sent, lost := f.Stop(t)
			if lost > 0 {
				t.Errorf("%d of %d pings lost, want 0", lost, sent)
			} else {
				t.Logf("mesh, mesh and reflectors, reflectors, each of them lost and back: 0 of %d pings lost", sent)
			}

			w3 := x.workers[2]
			block := world.Blocks(t, w3, "-4")[0]
			x.learned(t, block, w3, true)
			path := strings.NewReplacer("/", "-").Replace(block.String())
			if r, err := x.Etcd.Delete(t.Context(), "/calico/ipam/v2/host/w3/ipv4/block/"+path); err != nil ||
				r.Deleted != 1 {
				t.Fatalf("delete the affinity of %s: %+v, %v", path, r, err)
			}
			x.learned(t, block, w3, false) // no reflector keeps another one's copy of it
			time.Sleep(time.Second)
			x.learned(t, block, w3, false)
		})
	}
}
