package dataplane

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/locrib"
	"github.com/manxnet/manx/dataplane/reconcile"
	"github.com/manxnet/manx/datastore/model"
)

// pair is two nodes on one link, each with an agent and a workload in its own namespace.
type pair struct {
	t      *testing.T
	hosts  [2]*host
	pods   [2]*host
	agents [2]*HostAgent
}

var (
	pairNodes = [2]string{"10.1.0.5", "10.1.0.9"}
	pairPods  = [2]string{"10.244.1.7", "10.244.2.7"}
	pairTun   = [2]string{"10.244.1.1", "10.244.2.1"}
)

func newPair(t *testing.T, ipip string) *pair {
	t.Helper()
	if _, err := exec.LookPath("ping"); err != nil {
		t.Skip("iputils-ping is not installed")
	}
	p := &pair{t: t}
	for i := range 2 {
		p.hosts[i], p.pods[i] = bareHost(t), bareHost(t)
	}
	a, b := p.hosts[0], p.hosts[1]
	a.ip("link add eth0 type veth peer name eth0 netns " + b.name)
	for i, h := range p.hosts {
		h.ip("addr add " + pairNodes[i] + "/24 dev eth0")
		h.ip("link set eth0 up")
		h.ip("route add default via 10.1.0.1") // proxy ARP replies only where the host itself has a route
		h.wire(p.pods[i], pairPods[i])
		p.agents[i], _ = h.agent()
		p.agents[i].set(pairState(i, ipip))
		p.agents[i].synced(true, true)
	}
	return p
}

// wire connects a workload as the CNI plugin does, without the settings that are the agent's.
func (h *host) wire(pod *host, address string) {
	h.t.Helper()
	h.ip("link add cali1 type veth peer name eth0 netns " + pod.name)
	h.ip("link set cali1 address ee:ee:ee:ee:ee:ee up")
	pod.ip("link set eth0 up")
	pod.ip("addr add " + address + "/32 dev eth0")
	pod.ip("route add 169.254.1.1 dev eth0 scope link")
	pod.ip("route add default via 169.254.1.1")
}

func pairState(i int, ipip string) model.Set {
	block := []string{"10.244.1.0/26", "10.244.2.0/26"}[i]
	n := nodeObject("node-1", pairNodes[i]+"/24", "")
	n.Value.(*model.Node).Spec.BGP.IPv4IPIPTunnelAddr = pairTun[i]
	return model.NewSet(n, poolObject("pool", "10.244.0.0/16", ipip), blockObject(block, model.StateConfirmed),
		endpointObject("pod", "node-1", "cali1", pairPods[i]+"/32"))
}

// exchange takes the place of BGP.
func (p *pair) exchange() {
	p.agents[0].Learn([]locrib.Route{learned("10.244.2.0/26", 1024, pairNodes[1])})
	p.agents[1].Learn([]locrib.Route{learned("10.244.1.0/26", 1024, pairNodes[0])})
}

func (p *pair) ping() {
	p.t.Helper()
	for i := range 2 {
		settle(p.t, p.agents[i])
	}
	waitFor(p.t, "an answer from the other workload", func() bool {
		return exec.Command("ip", "netns", "exec", p.pods[0].name, "ping", "-c1", "-W1", pairPods[1]).Run() == nil
	})
}

func TestPodTrafficWithoutEncapsulation(t *testing.T) {
	p := newPair(t, "Never")
	p.exchange()
	p.ping()
	// Another program breaks a setting without an event; the timer finds it. Here a resync is requested.
	c := p.hosts[1].open()
	if err := c.SetSysctl("net/ipv4/conf/cali1/proxy_arp", "0"); err != nil {
		t.Fatal(err)
	}
	p.agents[1].Resync()
	waitFor(t, "proxy_arp to be repaired", func() bool {
		v, _ := c.Sysctl("net/ipv4/conf/cali1/proxy_arp")
		return v == "1"
	})
	mtuFile := ""
	for _, s := range p.agents[1].Objects("") {
		if file, ok := strings.CutPrefix(s.Key, "file "); ok {
			mtuFile = file
		}
		if s.Phase != reconcile.Applied {
			t.Errorf("%+v", s)
		}
	}
	if mtu, err := os.ReadFile(mtuFile); err != nil || string(mtu) != "1500" {
		t.Errorf("MTU file: %q %v", mtu, err)
	}
}

// The real tunnel device, with foreign addresses and a wrong MTU on it. Then the pool stops using IPIP.
func TestVMPodTrafficByIPIP(t *testing.T) {
	probe := bareHost(t)
	if _, err := probe.open().EnsureDevice(kernel.Device{Name: "tunl0", Kind: "ipip"}); errors.Is(err,
		kernel.ErrNoIPIP) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	p := newPair(t, "Always")
	p.exchange()
	p.ping()
	a, h := p.agents[0], p.hosts[0]
	h.eventually("-4", defaultRoute, "10.244.1.7 dev cali1 proto 80 scope link metric 1024",
		"blackhole 10.244.1.0/26 proto bird",
		"10.244.2.0/26 via 10.1.0.9 dev tunl0 proto 80 metric 1024 onlink")
	h.ip("addr add 192.0.2.77/32 dev tunl0")
	h.ip("link set tunl0 mtu 1300")
	tunnel := func() string { return h.ip("-o addr show tunl0") + h.ip("-o link show tunl0") }
	waitFor(t, "tunl0 to be repaired", func() bool {
		s := tunnel()
		return strings.Contains(s, "10.244.1.1/32") && !strings.Contains(s, "192.0.2.77") &&
			strings.Contains(s, "mtu 1480")
	})
	h.ip("link set tunl0 down")
	h.eventually("-4", defaultRoute, "10.244.1.7 dev cali1 proto 80 scope link metric 1024",
		"blackhole 10.244.1.0/26 proto bird",
		"10.244.2.0/26 via 10.1.0.9 dev tunl0 proto 80 metric 1024 onlink")
	p.ping()
	for i := range 2 { // without a restart, from one mode to the other
		p.agents[i].set(pairState(i, "CrossSubnet"))
	}
	h.eventually("-4", defaultRoute, "10.244.1.7 dev cali1 proto 80 scope link metric 1024",
		"blackhole 10.244.1.0/26 proto bird",
		"10.244.2.0/26 via 10.1.0.9 dev eth0 proto 80 metric 1024")
	p.ping()
	for i := range 2 {
		p.agents[i].set(pairState(i, "Never"))
	}
	h.eventually("-4", defaultRoute, "10.244.1.7 dev cali1 proto 80 scope link metric 1024",
		"blackhole 10.244.1.0/26 proto bird",
		"10.244.2.0/26 via 10.1.0.9 dev eth0 proto bird metric 1024")
	p.ping()
	// Other nodes may still send by the tunnel as long as the Node has its address.
	if s := tunnel(); !strings.Contains(s, "10.244.1.1/32") {
		t.Errorf("tunl0 has lost its address: %s", s)
	}
	without := pairState(0, "Never")
	without[model.ResourceKey(model.KindNode, "node-1")].Value.(*model.Node).Spec.BGP.IPv4IPIPTunnelAddr = ""
	a.set(without)
	waitFor(t, "tunl0 to lose its address", func() bool { return !strings.Contains(tunnel(), "inet ") })
	for _, s := range a.Routes() {
		if s.Phase != reconcile.Applied {
			t.Errorf("%s: %s %s", s.Prefix, s.Phase, s.Reason)
		}
	}
}
