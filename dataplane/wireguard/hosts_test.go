package wireguard

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/kernel/kerneltest"
	"github.com/manxnet/manx/datastore/model"
)

// encryptHosts switches the encryption of packets to the nodes themselves on or off.
func (r *rig) encryptHosts(on bool) {
	o := felix(true)
	o.Value.(*model.FelixConfiguration).Spec.WireguardHostEncryptionEnabled = &on
	r.put(o)
}

// hostWay returns how packets to a node itself go, by the table.
func (r *rig) hostWay(i int) string {
	r.t.Helper()
	p := netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}), 32)
	routes, _ := r.kernel.ListRoutes(table)
	for _, x := range routes {
		switch {
		case x.Dst != p:
		case x.Type == kernel.Unicast && x.Src != netip.MustParseAddr("192.0.2.1"):
			return "from " + x.Src.String()
		default:
			return x.Type.String()
		}
	}
	return "main"
}

func (r *rig) wantHostWay(what string, i int, want string) {
	r.t.Helper()
	if got := r.hostWay(i); got != want {
		r.t.Errorf("%s: packets to the host n%d go by %q, want %q; %s", what, i, got, want, r.hostReason(i))
	}
}

// count has a peer receive and send so many further bytes.
func (r *rig) count(key string, received, sent uint64) {
	r.t.Helper()
	if err := r.kernel.CountPeer(device, kerneltest.PublicKey(key), received, sent); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) hostReason(i int) string {
	for _, row := range r.target.Rows() {
		if row.Key == "host n"+string(rune('0'+i))+" IPv4" {
			return row.Reason
		}
	}
	return ""
}

// exceptionsOf returns the rules before the one of the tunnel.
func (r *rig) exceptionsOf() (list []string) {
	rules, _ := r.kernel.ListRules()
	for _, x := range rules {
		if x.Priority == priority-1 {
			list = append(list, x.String())
		}
	}
	slices.Sort(list)
	return list
}

// shaken is a rig whose n2 has shaken hands, with host encryption for a minute; n3 has no key.
func shaken(t *testing.T, required bool) *rig {
	r := newRig(t, required, node(2, "k2"), node(3, ""))
	r.flush()
	r.shake("k2")
	r.later(time.Second)
	r.encryptHosts(true)
	return r
}

// Packets to a host are encrypted once there was a handshake and the others had time to prepare; the rules that keep
// the datastore and BGP reachable come first and go last.
func TestHostsAreEncrypted(t *testing.T) {
	r := shaken(t, false)
	r.target.SetServers([]netip.AddrPort{netip.MustParseAddrPort("192.0.2.2:6443"),
		netip.MustParseAddrPort("192.0.2.2:2379"), netip.MustParseAddrPort("[fd01::2]:6443")})
	r.flush()
	want := []string{"98: from all iif lo ipproto tcp dport 179 lookup main",
		"98: from all iif lo ipproto tcp dport 2379-2380 lookup main",
		"98: from all iif lo ipproto tcp dport 6443 lookup main",
		"98: from all iif lo ipproto tcp sport 179 lookup main",
		"98: from all iif lo ipproto tcp sport 2379-2380 lookup main",
		"98: from all iif lo ipproto tcp sport 6443 lookup main",
		"98: from all to 192.0.2.2 ipproto tcp dport 2379 lookup main",
		"98: from all to 192.0.2.2 ipproto tcp dport 6443 lookup main"}
	if got := r.exceptionsOf(); !slices.Equal(got, want) {
		t.Errorf("the rules are\n%s", strings.Join(got, "\n"))
	}
	r.wantHostWay("at once", 2, "main")
	if got := r.hostReason(2); got != "plain: it begins in 3 s, when the other nodes are ready" {
		t.Error(got)
	}
	if next := r.target.Next(); next > linger {
		t.Errorf("the next step is in %s", next)
	}
	r.later(linger)
	r.wantHostWay("a while later", 2, "unicast")
	r.wantHostWay("without a key", 3, "main")
	if got := r.hostReason(2); got != "encrypted" {
		t.Error(got)
	}
	if got, _ := r.kernel.ARPMark(); got != mark {
		t.Errorf("ARP packets have the mark 0x%x", got)
	}
	if log := r.later(time.Minute); len(log) > 0 {
		t.Errorf("without a change: %q", log)
	}
	r.encryptHosts(false)
	log := r.flush()
	first, last := log[0], log[len(log)-1]
	if !strings.HasPrefix(first, "delete 192.0.2.2/32") || last != "ARP mark 0x0" {
		t.Errorf("switched off:\n%s", strings.Join(log, "\n"))
	}
	if rules := r.exceptionsOf(); len(rules) > 0 || r.hostWay(2) != "main" || r.way(2) != "unicast" {
		t.Errorf("switched off: rules %v, to n2 %s, to its pods %s", rules, r.hostWay(2), r.way(2))
	}
}

// A new process goes on at once; the settings of Felix that it finds are no reason to wait.
func TestHostsStayEncrypted(t *testing.T) {
	r := shaken(t, false)
	r.flush()
	r.later(linger)
	r.start(false, false)
	if log := r.flush(); len(log) > 0 {
		t.Errorf("before the blocks are known: %q", log)
	}
	r.target.SetPlacesSynced(true)
	if log := r.later(time.Second); len(log) > 0 {
		t.Errorf("afterwards: %q", log)
	}
	r.wantHostWay("a new process", 2, "unicast")
}

// A tunnel by which nothing arrives takes no packets to the host; they go in plain until the next handshake.
func TestDeadTunnels(t *testing.T) {
	for _, c := range []struct {
		rule             string
		required, server bool
		want             string
	}{
		{"not required", false, false, "main"},
		{"required", true, false, "unicast"},
		{"required, to a server", true, true, "main"},
	} {
		r := shaken(t, c.required)
		if c.server {
			r.target.SetServers([]netip.AddrPort{netip.MustParseAddrPort("192.0.2.2:6443")})
		}
		r.flush()
		r.later(linger)
		for range 5 { // an idle one, and one with answers, are alive
			r.later(10 * time.Second)
			r.count("k2", 100, 100)
		}
		r.wantHostWay(c.rule+": alive", 2, "unicast")
		r.later(10 * time.Second)
		r.count("k2", 2*initiation, 100) // the other one hears nothing, either
		r.later(10 * time.Second)
		r.wantHostWay(c.rule+": for a moment", 2, "unicast")
		r.count("k2", 0, 100)
		r.later(10 * time.Second)
		r.count("k2", 0, 100)
		r.later(10 * time.Second)
		r.wantHostWay(c.rule+": dead", 2, c.want)
		d, _ := r.kernel.WireGuard(device)
		if got := d.Peers[0].Keepalive; got != lookout {
			t.Errorf("%s: tries each %s", c.rule, got)
		}
		if r.way(2) != "unicast" {
			t.Errorf("%s: pods get packets by %s", c.rule, r.way(2))
		}
		r.count("k2", 100, 100)
		r.later(10 * time.Second)
		r.wantHostWay(c.rule+": something arrives", 2, c.want)
		r.shake("k2")
		r.later(10 * time.Second)
		r.wantHostWay(c.rule+": after a handshake", 2, "unicast")
	}
}

// Nobody answers a keepalive: a tunnel by which nothing else is sent is alive.
func TestIdleTunnelsAreAlive(t *testing.T) {
	r := shaken(t, false)
	r.flush()
	r.later(linger)
	r.later(10 * time.Second)
	r.count("k2", 100, 0)
	r.later(10 * time.Second)
	for range 5 {
		r.count("k2", 0, keepalive)
		r.later(10 * time.Second)
	}
	r.wantHostWay("idle", 2, "unicast")
}

// A look at the kernel alone shows that a tunnel is dead: time passes between two of them, and answers arrive.
func TestNoTunnelDiesUnseen(t *testing.T) {
	r := shaken(t, false)
	r.flush()
	r.later(linger)
	r.later(10 * time.Second)
	r.count("k2", 0, 96)
	r.later(10 * time.Second)
	r.later(10 * time.Second)
	r.count("k2", 1000, 1000)
	r.now = r.now.Add(silence - 9*time.Second) // not yet the next look
	r.put(node(4, "k4"))
	r.flush()
	r.wantHostWay("answered since", 2, "unicast")
}

// Without a handshake packets to a host are never encrypted, however long it takes, unless that is required.
func TestHostsAwaitAHandshake(t *testing.T) {
	r := newRig(t, false, node(2, "k2"))
	r.encryptHosts(true)
	r.flush()
	for range 20 {
		r.later(time.Second)
	}
	r.wantWay("after a while", 2, "unicast") // of pods
	r.wantHostWay("without a handshake", 2, "main")
	if got := r.hostReason(2); got != "plain: no handshake with n2 yet" {
		t.Error(got)
	}
	r = newRig(t, true, node(2, "k2"))
	r.encryptHosts(true)
	r.flush()
	r.wantHostWay("required", 2, "unicast")
	r.kernel.DropLink(index)
	r.target.Handle([]kernel.Event{{Type: kernel.EventLinkGone, Link: kernel.Link{Index: index, Name: device}}})
	r.flush()
	r.wantHostWay("required, without the device", 2, "unreachable")
	if got := r.hostReason(2); got != "refused: there is no device wireguard.cali yet" {
		t.Error(got)
	}
}

// Packets to the nodes stay encrypted when the device cannot be read.
func TestAFailedReadLeavesHostsEncrypted(t *testing.T) {
	r := shaken(t, false)
	r.flush()
	r.later(linger)
	r.later(time.Second)
	r.wantHostWay("before", 2, "unicast")
	r.now = r.now.Add(11 * time.Second)
	r.kernel.Fail("WireGuard", r.kernel.Calls("WireGuard")+1, errors.New("ENOBUFS"))
	if _, _, err := r.target.Flush(); err == nil {
		t.Error("no failure")
	}
	r.kernel.Heal()
	r.now = r.now.Add(5 * time.Millisecond)
	_, _, _ = r.target.Flush()
	r.wantHostWay("after a failed read", 2, "unicast")
}

// Another Node with a node's address takes nothing from that one: its answers to pods are taken.
func TestAnotherNodeWithOneAddress(t *testing.T) {
	r := newRig(t, false, node(2, "k2"))
	r.flush()
	r.shake("k2")
	r.later(time.Second)
	again := node(2, "")
	again.Key.Name = "n2-again"
	r.put(again)
	r.later(time.Second)
	d, _ := r.kernel.WireGuard(device)
	if !slices.Contains(d.Peers[0].AllowedIPs, netip.MustParsePrefix("192.0.2.2/32")) {
		t.Errorf("from the node nothing is taken: %+v", d.Peers)
	}
}

// No node draws packets to an address that another one has, or that this host needs; packets from a gateway are taken,
// and those from an address that several nodes have, of the oldest.
func TestRefusedHosts(t *testing.T) {
	r := shaken(t, false)
	r.put(node(4, "k4"))
	twin := node(4, "k5")
	twin.Key.Name = "n5"
	r.put(twin)
	r.refused = map[netip.Prefix]string{netip.MustParsePrefix("192.0.2.2/32"): "192.0.2.2 is a gateway of this host"}
	r.flush()
	r.shake("k4")
	r.later(linger)
	for i, want := range map[int]string{2: "plain: 192.0.2.2 is a gateway of this host",
		4: "plain: another node has the address 192.0.2.4, too"} {
		r.wantHostWay(want, i, "main")
		if got := r.hostReason(i); got != want {
			t.Errorf("n%d: %s, want %s", i, got, want)
		}
	}
	d, _ := r.kernel.WireGuard(device)
	for _, p := range d.Peers {
		h := netip.PrefixFrom(p.Endpoint.Addr(), 32)
		if got, want := slices.Contains(p.AllowedIPs, h), p.Key != kerneltest.PublicKey("k5"); got != want {
			t.Errorf("from %s packets are taken: %t", h, got)
		}
	}
	notices := ""
	for _, n := range r.target.Notices() {
		notices += n.Subject + ": " + n.Text + "\n"
	}
	if !strings.Contains(notices, "host of node n4 (IPv4): packets to the node itself are not encrypted: "+
		"another node") {
		t.Error(notices)
	}
}

// Where the packet filter is off no packet to a host is encrypted, and a notice says so.
func TestHostsNeedPolicy(t *testing.T) {
	r := shaken(t, false)
	r.target.config.NoHosts = "that needs --policy"
	r.flush()
	r.later(linger)
	r.wantHostWay("without policy", 2, "main")
	if list := r.target.Notices(); len(r.exceptionsOf()) > 0 || list[len(list)-1].Text != "that needs --policy" {
		t.Errorf("%v, %+v", r.exceptionsOf(), list)
	}
}
