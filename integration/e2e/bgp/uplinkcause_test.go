package bgp

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/manxnet/manx/integration/e2e/world"
	"github.com/manxnet/manx/integration/lab"
	manxv1 "github.com/manxnet/manx/proto/manx/v1"
)

// TestOtherUplink: the Node has the address of one of two uplinks, and the router at the other uplink peers with the
// other address. The status shows the cause and two commands that repair it, without alternating and with one line in
// the log. Each of the commands repairs it.
func TestOtherUplink(t *testing.T) {
	l := world.NewLab(t, lab.Spec{Name: world.LabName("u"), ToRs: 2, Nodes: []lab.NodeSpec{{Name: "n1"}}})
	n, tor := l.Nodes[0], l.ToRs[1]
	args := append(n.EmbedDatastore(), "--no-default-pools")
	must(t, n.StartManxd(append(args, "--ip="+n.IP4.String())...))
	must(t, n.Ready(limit))
	peering := fmt.Sprintf("apiVersion: projectcalico.org/v3\nkind: BGPPeer\nmetadata: {name: tor2}\nspec: {node: "+
		"n1, peerIP: %s, asNumber: 65000", tor.Address(n))
	must(t, n.Apply(peering+"}"))

	other := tor.Address(n).As4()
	other[3] = n.IP4.As4()[3] // the node's address on that uplink
	address := fmt.Sprintf("%d.%d.%d.%d", other[0], other[1], other[2], other[3])
	cause := fmt.Sprintf("%s connects to %s, but this session uses %s", tor.Address(n), address, n.IP4)
	p := world.AwaitPeer(t, n, tor.Address(n), cause,
		func(p *manxv1.Peer) bool { return strings.Contains(p.GetReason(), cause) })
	for _, command := range []string{"manxd --ip=" + address,
		"--ip-autodetection-method=can-reach=" + tor.Address(n).String(),
		"manxctl apply BGPPeer/tor2 with sourceAddress: None"} {
		if !strings.Contains(p.GetReason(), command) {
			t.Errorf("no %q in %q", command, p.GetReason())
		}
	}

	lines := strings.Count(n.Log(), "closed the connection before it sent an OPEN")
	// several attempts of each side
	for until := time.Now().Add(15 * time.Second); time.Now().Before(until); time.Sleep(200 * time.Millisecond) {
		if p := world.Peer(t, n, tor.Address(n)); !strings.Contains(p.GetReason(), cause) ||
			p.GetLastError() != p.GetReason() {
			t.Fatalf("a symptom replaced the cause: %q", p.GetReason())
		}
	}
	for text, most := range map[string]int{cause: 1, "closed the connection before it sent an OPEN": lines} {
		if have := strings.Count(n.Log(), text); have > most {
			t.Errorf("%d lines in the log with %q, want %d at most", have, text, most)
		}
	}
	// It fails, because the node is unhealthy.
	if out, err := n.Manxctl("status"); err == nil || !strings.Contains(err.Error()+out, cause) {
		t.Errorf("manxctl status does not name the cause: %v\n%s", err, out)
	}
	// The router's own connections are closed.
	seen, err := tor.Birdc("show", "protocols", "all", "n1")
	must(t, err)
	if strings.Contains(seen, "Established") || !strings.Contains(seen, "Neighbor address: "+address) {
		t.Errorf("the router:\n%s", seen)
	}

	up := func(how string) {
		t.Helper()
		world.AwaitPeer(t, n, tor.Address(n), how, func(p *manxv1.Peer) bool {
			return p.GetPhase() == "Established" &&
				p.GetSource() == address
		})
	}
	must(t, n.Apply(peering+", sourceAddress: None}"))
	up("established from any address")
	must(t, n.Apply(peering+"}"))
	world.AwaitPeer(t, n, tor.Address(n), cause, func(p *manxv1.Peer) bool {
		return strings.Contains(p.GetReason(),
			cause)
	})
	for _, detect := range []string{"--ip=" + address,
		"--ip-autodetection-method=can-reach=" + tor.Address(n).String()} {
		n.Manxd().Kill()
		<-n.Manxd().Done()
		ip := []string{detect}
		if !strings.HasPrefix(detect, "--ip=") {
			ip = append(ip, "--ip=autodetect")
		}
		must(t, n.StartManxd(append(args, ip...)...))
		up("established with manxd " + detect)
	}
}
