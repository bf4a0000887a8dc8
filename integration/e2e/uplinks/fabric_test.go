package uplinks

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/manxnet/manx/integration/e2e/world"
	"github.com/manxnet/manx/integration/lab"
	"github.com/manxnet/manx/integration/namespace"
)

// fabric is a rack of three hosts with two uplinks, two top-of-rack routers of different ASes that are switches of
// their hosts, too, and a spine router above both. An outside network is behind the spine. All routers run BIRD.
type fabric struct {
	*lab.Lab
	hosts []*lab.Node
	tors  []*router
	spine *router
	pods  map[*lab.Node][]*lab.Pod
}

// router is a namespace with BIRD.
type router struct {
	name, namespace, dir string

	fabric *fabric
	bird   *lab.Process
}

const (
	hostAS  = 64512
	spineAS = 65100
	// ports of a top-of-rack router: those of the hosts are p0, p1 and p2
	toSpine = "spine"
)

// rack is the bridge of a top-of-rack router, whose ports lead to the hosts.
func rack(i int) string { return fmt.Sprintf("rack%d", 1+100*i) }

// torAS is the AS of a top-of-rack router.
func torAS(i int) int { return 65001 + i }

// outside has the addresses outside; more than one, so that flows use both uplinks.
var outside = []netip.Addr{netip.MustParseAddr("198.51.100.1"), netip.MustParseAddr("198.51.100.2"),
	netip.MustParseAddr("198.51.100.3"), netip.MustParseAddr("198.51.100.4")}

const outsideNet = "198.51.100.0/24"

// newFabric builds a fabric whose routers have this setting of "bfd" for their hosts, with these objects.
func newFabric(t *testing.T, name, bfd, objects string) *fabric {
	t.Helper()
	start := time.Now()
	l := world.NewLab(t, lab.Spec{Name: world.LabName(name), ToRs: 2, PlainRouters: true,
		Nodes: []lab.NodeSpec{{Name: "n1"}, {Name: "n2"}, {Name: "n3"}}})
	f := &fabric{Lab: l, hosts: l.Nodes, pods: map[*lab.Node][]*lab.Pod{}}
	f.spine = f.addRouter(t, "spine", l.Spec.Name+"-spine")
	world.Must(t, namespace.Add(f.spine.namespace))
	f.spine.sysctl(t, "ip_forward", "fib_multipath_hash_policy")
	for _, a := range outside {
		world.Must(t, namespace.Batch(f.spine.namespace, fmt.Sprintf("addr add %s/32 dev lo", a)))
	}
	for i, tor := range l.ToRs {
		r := f.addRouter(t, tor.Name, tor.Namespace)
		f.tors = append(f.tors, r)
		world.Must(t, namespace.Batch(r.namespace,
			// of its own: else a bridge has that of one of its ports, another one when ports come and go
			fmt.Sprintf("link set %s address 02:00:0a:c8:%02x:01", rack(i), i),
			fmt.Sprintf("link add %s type veth peer name %s netns %s", toSpine, r.name, f.spine.namespace),
			fmt.Sprintf("addr add %s/30 dev %s", up(i, 2), toSpine), "link set "+toSpine+" up"))
		world.Must(t, namespace.Batch(f.spine.namespace,
			fmt.Sprintf("addr add %s/30 dev %s", up(i, 1), r.name), "link set "+r.name+" up"))
		r.start(t, f.torConfig(i, bfd))
	}
	f.spine.start(t, f.spineConfig())

	flags := []string{"--no-default-pools", "--ip=autodetect", "--ip-autodetection-method=interface=eth0"}
	world.Must(t, f.hosts[0].StartManxd(append(f.hosts[0].EmbedDatastore(), flags...)...))
	world.Must(t, f.hosts[0].Ready(world.Limit))
	world.Must(t, f.hosts[0].Apply(fmt.Sprintf("apiVersion: projectcalico.org/v3\nkind: IPPool\nmetadata: {name: "+
		"pods}\nspec: {cidr: %s, blockSize: 28, ipipMode: Never, natOutgoing: false}\n---\n%s", world.Pool4, objects)))
	for _, n := range f.hosts[1:] { // not over the network, which is what fails here
		world.Must(t, n.StartManxd(append([]string{"--datastore=etcdv3", "--etcd-endpoints=" + f.hosts[0].EtcdSocket()},
			flags...)...))
	}
	for _, n := range f.hosts {
		world.Must(t, n.Ready(world.Limit))
		for i := range 2 {
			p, err := n.AddPod(fmt.Sprintf("%s-p%d", n.Name, i+1))
			world.Must(t, err)
			f.pods[n] = append(f.pods[n], p)
		}
	}
	f.settled(t)
	t.Logf("a fabric with two uplinks for each host works after %.1f s", time.Since(start).Seconds())
	return f
}

func (f *fabric) addRouter(t *testing.T, name, ns string) *router {
	t.Helper()
	r := &router{name: name, namespace: ns, dir: filepath.Join(f.Dir, name), fabric: f}
	world.Must(t, os.MkdirAll(r.dir, 0o755))
	t.Cleanup(func() {
		if b, err := os.ReadFile(filepath.Join(r.dir, "bird.log")); err == nil && t.Failed() {
			t.Logf("end of the log of BIRD on %s:\n%s", r.name, world.Tail(string(b), 60))
		}
	})
	return r
}

func (r *router) sysctl(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		out, err := namespace.Command(r.namespace, "sh", "-c", "echo 1 > /proc/sys/net/ipv4/"+name).CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v: %s", name, err, out)
		}
	}
}

// up is an address of the cable between a top-of-rack router and the spine.
func up(tor int, host byte) netip.Addr { return netip.AddrFrom4([4]byte{10, 201, byte(tor), host}) }

// address is a host's address on the uplink to a top-of-rack router.
func (f *fabric) address(n *lab.Node, tor int) netip.Addr {
	a := f.ToRs[tor].Address(n).As4()
	a[3] = n.IP4.As4()[3]
	return netip.AddrFrom4(a)
}

// port is the port of a top-of-rack router that leads to a host.
func (f *fabric) port(n *lab.Node) string { return fmt.Sprintf("p%d", n.IP4.As4()[3]-11) }

// block is the address block of a host; empty before it has one.
func (f *fabric) block(t *testing.T, n *lab.Node) string {
	t.Helper()
	list := world.Blocks(t, n, "-4")
	if len(list) == 0 {
		return ""
	}
	return list[0].String()
}

// packets is how many packets have left, and come, by an interface of a host.
func packets(t *testing.T, n *lab.Node, device string) (sent, received int) {
	t.Helper()
	out, err := n.Run("ip", "-j", "-s", "link", "show", device)
	world.Must(t, err)
	var list []struct {
		Stats struct {
			TX, RX struct{ Packets int }
		} `json:"stats64"`
	}
	world.Must(t, json.Unmarshal([]byte(out), &list))
	return list[0].Stats.TX.Packets, list[0].Stats.RX.Packets
}

// rates are the packets a second that leave, and come, by an interface of some hosts.
func rates(t *testing.T, hosts []*lab.Node, device string) (sent, received []int) {
	t.Helper()
	for _, n := range hosts {
		s, r := packets(t, n, device)
		sent, received = append(sent, -s), append(received, -r)
	}
	time.Sleep(time.Second) // what it counts
	for i, n := range hosts {
		s, r := packets(t, n, device)
		sent[i], received[i] = sent[i]+s, received[i]+r
	}
	return sent, received
}

// common is the part of BIRD's configuration that all routers share.
func common(id netip.Addr) string {
	return fmt.Sprintf("log stderr all;\nrouter id %s;\nprotocol device { scan time 1; }\nprotocol direct { ipv4; }\n"+
		"protocol kernel { ipv4 { export where source = RTS_BGP; }; merge paths on; graceful restart on; }\n"+
		"protocol bfd { interface \"*\" { min rx interval 300 ms; min tx interval 300 ms; multiplier 3; }; }\n"+
		"filter last_choice { if (65535, 0) ~ bgp_community then bgp_local_pref = 0; accept; }\n"+ // RFC 8326
		"template bgp neighbour { connect retry time 2; connect delay time 1; error wait time 1, 2;\n"+
		"  graceful restart on; }\n", id)
}

func (f *fabric) torConfig(i int, bfd string) string {
	b := common(up(i, 2)) + fmt.Sprintf("protocol bgp 'spine' from neighbour { local %s as %d; neighbor %s as %d; "+
		"bfd on;\n  ipv4 { import filter last_choice; export where source = RTS_BGP; }; }\n",
		up(i, 2), torAS(i), up(i, 1), spineAS)
	for _, n := range f.hosts {
		b += fmt.Sprintf("protocol bgp '%s' from neighbour { local %s as %d; neighbor %s as %d; bfd %s;\n"+
			"  ipv4 { import filter last_choice; export where source = RTS_BGP; }; }\n",
			n.Name, f.ToRs[i].Address(n), torAS(i), f.address(n, i), hostAS, bfd)
	}
	return b
}

func (f *fabric) spineConfig() string {
	b := common(up(0, 1)) + fmt.Sprintf("protocol static outside { ipv4; route %s blackhole; }\n", outsideNet)
	for i, tor := range f.tors {
		b += fmt.Sprintf("protocol bgp '%s' from neighbour { local %s as %d; neighbor %s as %d; bfd on;\n"+
			"  ipv4 { import filter last_choice; export where source = RTS_BGP || proto = \"outside\"; }; }\n",
			tor.name, up(i, 1), spineAS, up(i, 2), torAS(i))
	}
	return b
}

func (r *router) start(t *testing.T, config string) {
	t.Helper()
	world.Must(t, os.WriteFile(filepath.Join(r.dir, "bird.conf"), []byte(config), 0o644))
	r.run(t)
}

// run runs BIRD, again after it has ended; "-R" has it recover by graceful restart.
func (r *router) run(t *testing.T, args ...string) {
	t.Helper()
	var err error
	r.bird, err = r.fabric.Start("bird", r.dir, namespace.Command(r.namespace, "bird", append([]string{"-f",
		"-c", filepath.Join(r.dir, "bird.conf"), "-s", filepath.Join(r.dir, "bird.ctl")}, args...)...))
	world.Must(t, err)
}

// birdc queries BIRD.
func (r *router) birdc(words ...string) (string, error) {
	out, err := namespace.Command(r.namespace, "birdc", append([]string{"-s", filepath.Join(r.dir, "bird.ctl")},
		words...)...).CombinedOutput()
	return string(out), err
}

// hops are the next hops of the route to a prefix in a namespace.
func hops(t *testing.T, ns, prefix string) (list []string) {
	t.Helper()
	for _, r := range world.Routes(t, ns, "-4", prefix) {
		if r.Gateway != "" {
			list = append(list, r.Gateway)
		}
		for _, h := range r.NextHops {
			list = append(list, h.Gateway)
		}
	}
	return list
}

// matured is when BFD may end a session at once: a router's BFD begins anew with a session.
const matured = 2500 * time.Millisecond

// settled waits until each host and the spine have two ways to everything, each router its own way to each host, and
// BFD is up on all sessions.
func (f *fabric) settled(t *testing.T) {
	t.Helper()
	world.Eventually(t, f.unsettled(t))
}

func (f *fabric) unsettled(t *testing.T) func() error {
	return func() error {
		for _, n := range f.hosts {
			if have := hops(t, n.Namespace, outsideNet); len(have) != 2 {
				return fmt.Errorf("%s: next hops to the outside: %v, want two", n.Name, have)
			}
			if err := f.bfdUp(t, n); err != nil {
				return err
			}
			block := f.block(t, n)
			if block == "" {
				return fmt.Errorf("%s has no block", n.Name)
			}
			for i, tor := range f.tors {
				if have := hops(t, tor.namespace, block); len(have) != 1 ||
					have[0] != f.address(n, i).String() {
					return fmt.Errorf("%s: next hops to the block of %s: %v, want %s", tor.name, n.Name, have,
						f.address(n, i))
				}
			}
			others := []string{f.spine.namespace}
			for _, o := range f.hosts {
				if o != n {
					others = append(others, o.Namespace)
				}
			}
			for _, ns := range others {
				if have := hops(t, ns, block); len(have) != 2 {
					return fmt.Errorf("%s: next hops to the block of %s: %v, want two", ns, n.Name, have)
				}
			}
		}
		for _, tor := range f.tors {
			if out, err := tor.birdc("show", "bfd", "sessions"); strings.Count(out, " Up ") != 4 {
				return fmt.Errorf("BFD of %s: %w\n%s", tor.name, err, out)
			}
		}
		return nil
	}
}

func (f *fabric) bfdUp(t *testing.T, n *lab.Node) error {
	peers := world.Peers(t, n)
	if len(peers) != 2 {
		return fmt.Errorf("%s: %d sessions, want 2: %v", n.Name, len(peers), peers)
	}
	for _, p := range peers {
		if p.GetState() != "Established" || p.GetBfd().GetState() != "Up" || p.GetBfd().GetMultihop() {
			return fmt.Errorf("%s: the session with %s is %s, BFD %v: %s", n.Name, p.GetAddress(), p.GetState(),
				p.GetBfd(), p.GetReason())
		}
		if age := time.Since(time.UnixMilli(p.GetEstablishedUnixMs())); age < matured {
			return fmt.Errorf("%s: the session with %s is up for %s only", n.Name, p.GetAddress(), age)
		}
	}
	return nil
}
