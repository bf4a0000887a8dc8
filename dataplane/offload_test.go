package dataplane

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/kernel/checksum"
	"github.com/manxnet/manx/dataplane/kernel/nettest"
	"github.com/manxnet/manx/dataplane/route"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/integration/namespace"
)

// inNamespace asks from a namespace.
type inNamespace struct {
	*kernel.Conn
	name string
}

func (n inNamespace) Probe(ctx context.Context, from, to netip.Addr, offload bool, timeout time.Duration,
) (ok bool, err error) {
	if in := namespace.Inside(n.name, func() { ok, err = checksum.Probe(ctx, from, to, offload, timeout) }); in != nil {
		return false, in
	}
	return ok, err
}

// offloadPair are nodes 1 and 2 with network cards that compute no checksums within tunnels.
type offloadPair struct {
	t      *testing.T
	hosts  [2]*host
	agents [2]*HostAgent
}

func newOffloadPair(t *testing.T, repair bool) *offloadPair {
	p := &offloadPair{t: t, hosts: [2]*host{bareHost(t), bareHost(t)}}
	nettest.BrokenOffload(t, p.hosts[0].name, p.hosts[1].name)
	for i, h := range p.hosts {
		h.ip(fmt.Sprintf("addr add 10.1.0.%d/24 dev eth0", 5+i))
		c := h.open()
		a := New(Config{Kernel: KernelOf(c), NodeName: fmt.Sprintf("node-%d", i+1), Logger: zap.NewNop(),
			Offload: inNamespace{c, h.name}, RepairOffload: repair})
		start(t, a)
		p.agents[i] = a
		a.Place([]route.Place{{Prefix: netip.MustParsePrefix("10.245.1.0/26"), Node: "node-1"},
			{Prefix: netip.MustParsePrefix("10.245.2.0/26"), Node: "node-2"}}, true)
		a.set(vxlanCluster(4096))
		a.synced(true, true)
	}
	return p
}

// override sets featureDetectOverride on both nodes.
func (p *offloadPair) override(text string) {
	set := vxlanCluster(4096)
	k := model.ResourceKey(model.KindFelixConfiguration, "default")
	set[k].Value.(*model.FelixConfiguration).Spec.FeatureDetectOverride = text
	for _, a := range p.agents {
		a.set(set)
	}
}

// await waits for the notice of node 1 about its device, of parts; none: no notice.
func (p *offloadPair) await(what string, parts ...string) {
	p.t.Helper()
	var text string
	ok := func() bool {
		text = ""
		for _, n := range p.agents[0].Status().Notices {
			if n.Subject == "device vxlan.calico" {
				text = n.Text
			}
		}
		for _, part := range parts {
			if !strings.Contains(text, part) {
				return false
			}
		}
		return len(parts) > 0 || text == ""
	}
	for deadline := time.Now().Add(time.Minute); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			p.t.Fatalf("%s: the notice is %q, want %q", what, text, parts)
		}
	}
}

// connects reports whether a TCP connection from node 1 to the tunnel address of node 2 is made.
func (p *offloadPair) connects() (ok bool) {
	p.t.Helper()
	var l net.Listener
	var failed error
	if err := namespace.Inside(p.hosts[1].name, func() { l, failed = net.Listen("tcp", "10.245.2.1:0") }); err != nil ||
		failed != nil {
		p.t.Fatal(err, failed)
	}
	defer l.Close()
	err := namespace.Inside(p.hosts[0].name, func() {
		d := net.Dialer{Timeout: 1500 * time.Millisecond,
			LocalAddr: &net.TCPAddr{IP: net.IPv4(10, 245, 1, 1)}}
		c, err := d.Dial("tcp", l.Addr().String())
		if ok = err == nil; ok {
			_ = c.Close()
		}
	})
	if err != nil {
		p.t.Fatal(err)
	}
	return ok
}

func (p *offloadPair) pings() {
	p.t.Helper()
	run(p.t, "ip", "netns", "exec", p.hosts[0].name, "ping", "-c", "1", "-W", "5", "-I", "10.245.1.1", "10.245.2.1")
}

// Two nodes whose network cards spoil the checksums within tunnels reach each other by ping alone, and say so. The
// setting has the kernel compute them, until it goes.
func TestSpoiledChecksums(t *testing.T) {
	p := newOffloadPair(t, false)
	p.await("spoiled", "interface eth0 (driver veth", "kernel "+kernel.Release(),
		"do not get to node node-2 (10.1.0.6)", "ethtool -K vxlan.calico tx-checksum-ip-generic off",
		"--offload-check=repair")
	p.pings()
	if p.connects() {
		t.Error("a TCP connection is made all the same")
	}
	p.override("ChecksumOffloadBroken=true")
	p.await("the setting")
	if !p.connects() {
		t.Error("no TCP connection with the setting")
	}
	p.override("")
	p.await("the setting is gone", "do not get to node node-2")
	if p.connects() {
		t.Error("the setting is gone, and the offload is off")
	}
}

// Nodes that may repair it do so.
func TestSpoiledChecksumsAreRepaired(t *testing.T) {
	p := newOffloadPair(t, true)
	p.await("repaired", "do not get to node node-2 (10.1.0.6)", "The kernel computes them now", "and they get there")
	for deadline := time.Now().Add(20 * time.Second); !p.connects(); {
		if time.Now().After(deadline) {
			t.Fatal("no TCP connection") // node 2 repairs its own device, too
		}
	}
	p.pings()
}
