package bgp

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/manxnet/manx/integration/e2e/world"
	"github.com/manxnet/manx/integration/lab"
	manxv1 "github.com/manxnet/manx/proto/manx/v1"
)

var troubles = []world.Trouble{
	{Name: "another AS here", Address: 31, Peer: "asNumber: 65009", Bird: " ",
		Reason: "expected AS 65009, received AS 65000 (sent NOTIFICATION 2/2)", By: "sent", Calls: true},
	{Name: "another AS there", Address: 32, Peer: "asNumber: 65000", Bird: " ", Remote: 64999,
		Reason: "it expects another AS, we are 64512 (received NOTIFICATION 2/2)", By: "received", Calls: true},
	{Name: "password only there", Address: 33, Peer: "asNumber: 65000", Bird: `password "theirs";`,
		Reason: "the peer wants an MD5 password and none is set here", By: "local", Calls: true},
	{Name: "another password", Address: 34, Peer: "asNumber: 65000, password: {secretKeyRef: {name: bgp, key: mine}}",
		Bird: `password "theirs";`, Reason: "a wrong MD5 password", By: "local", Calls: true},
	{Name: "nobody listens", Address: 35, Peer: "asNumber: 65000", Reason: "nothing listens on port 1790", By: "local",
		Calls: true},
	{Name: "nobody has the address", Address: 99, Peer: "asNumber: 65000", Reason: "no answer from", By: "local",
		Calls: true},
	{Name: "shut down there", Address: 37, Peer: "asNumber: 65000", Bird: " ",
		Do:     []string{"disable", "p37", `"new cables"`},
		Reason: `administrative shutdown, saying "new cables" (received NOTIFICATION 6/2)`, By: "received"},
	{Name: "too many prefixes for it", Address: 38, Peer: "asNumber: 65000",
		Bird: "import limit 1 action disable; export none;", Reason: "too many prefixes (received NOTIFICATION 6/1)",
		By: "received"},
	{Name: "too many prefixes for us", Address: 40, Peer: "asNumber: 65000", Annotations: `manx.io/max-prefixes: "2"`,
		Bird:   "export where proto = \"many\";",
		Reason: "announced more than 2 prefixes", By: "sent", Calls: true},
	{Name: "silence", Address: 39, Peer: "asNumber: 65000", Bird: "hold time 3;", Pause: true,
		Reason: "hold timer expired: nothing was heard from", By: "sent"}, // its kernel accepts the next connection
}

// killed is a session with a BIRD that ends without a word, and would restart gracefully.
var killed = world.Trouble{Address: 41, Peer: "asNumber: 65000", Bird: "graceful restart on;"}

// TestReasonsOfSessions queries, for each failing session, the reason, the side that reported it, and the time of the
// next attempt.
func TestReasonsOfSessions(t *testing.T) {
	l := world.NewLab(t, lab.Spec{Name: world.LabName("w"), PlainRouters: true, Nodes: []lab.NodeSpec{{Name: "n1"}}})
	n, tor := l.Nodes[0], l.ToRs[0]
	must(t, os.MkdirAll(filepath.Join(world.Secrets(n), "bgp"), 0o700))
	must(t, os.WriteFile(filepath.Join(world.Secrets(n), "bgp", "mine"), []byte("ours\n"), 0o600))
	must(t, n.StartManxd(append(n.EmbedDatastore(), "--no-default-pools", "--bgp-password-dir", world.Secrets(n))...))
	must(t, n.Ready(limit))

	at := func(last byte) netip.Addr {
		a := tor.Address(n).As4()
		a[3] = last
		return netip.AddrFrom4(a)
	}
	birds := map[byte]*world.TroubleBIRD{}
	for _, x := range append(troubles, killed) {
		birds[x.Address] = x.StartBIRD(t, n, tor, at)
	}
	peersOf := ""
	for _, x := range append(troubles, killed) {
		address := at(x.Address).String()
		if x.Name == "nobody listens" {
			address += ":1790"
		}
		peersOf += fmt.Sprintf("\n---\napiVersion: projectcalico.org/v3\nkind: BGPPeer\n"+
			"metadata: {name: p%d, annotations: {%s}}\nspec: {node: n1, peerIP: %q, sourceAddress: None, %s}\n",
			x.Address, x.Annotations, address, x.Peer)
	}
	must(t, n.Apply("apiVersion: projectcalico.org/v3\nkind: IPPool\nmetadata: {name: pods}\n"+
		"spec: {cidr: 10.244.0.0/16}\n---\napiVersion: projectcalico.org/v3\nkind: BGPConfiguration\n"+
		"metadata: {name: default}\n"+
		"spec: {serviceClusterIPs: [{cidr: 10.96.0.0/16}, {cidr: 10.97.0.0/16}]}"+peersOf))
	for _, x := range troubles {
		t.Run(x.Name, func(t *testing.T) {
			if x.Do != nil || x.Pause {
				world.AwaitPeer(t, n, at(x.Address), "up", func(p *manxv1.Peer) bool {
					return p.GetPhase() == "Established" &&
						p.GetNextAttemptUnixMs() == 0
				})
			}
			if x.Do != nil {
				birds[x.Address].Command(t, x.Do...)
			}
			if x.Pause {
				must(t, birds[x.Address].Process.Signal(syscall.SIGSTOP))
				defer birds[x.Address].Process.Signal(syscall.SIGCONT) //nolint:errcheck // it may have ended
			}
			p := world.AwaitPeer(t, n, at(x.Address), x.Reason, func(p *manxv1.Peer) bool {
				soon := time.Until(time.UnixMilli(p.GetNextAttemptUnixMs()))
				return strings.Contains(p.GetReason(), x.Reason) && (!x.Calls || soon > 0 && soon < 10*time.Minute)
			})
			if p.GetLastErrorBy() != x.By || p.GetLastError() != p.GetReason() || p.GetLastErrorAtUnixMs() == 0 ||
				p.GetPhase() != "Failed" {
				t.Errorf("session is %v, want Failed, last error by %s", p, x.By)
			}
			out, err := n.Manxctl("describe", "bgppeer", fmt.Sprintf("p%d", x.Address))
			must(t, err)
			if !strings.Contains(out, x.Reason) || !strings.Contains(out, "ago, "+x.By+": ") {
				t.Errorf("manxctl describe:\n%s", out)
			}
		})
	}
	out, err := n.Manxctl("get", "peers")
	must(t, err)
	if strings.Count(out, "\n") != len(troubles)+2 {
		t.Errorf("manxctl get peers:\n%s", out)
	}
	t.Logf("\n%s", out)
	historyOfSessions(t, n, birds, at)
}

// historyOfSessions wants what TestReasonsOfSessions has done to sessions, a session that comes back, and one whose
// routes are kept.
func historyOfSessions(t *testing.T, n *lab.Node, birds map[byte]*world.TroubleBIRD, at func(byte) netip.Addr) {
	birds[37].Command(t, "enable", "p37")
	up := func(p *manxv1.Peer) bool { return p.GetPhase() == "Established" }
	world.AwaitPeer(t, n, at(37), "up", up)
	world.AwaitPeer(t, n, at(killed.Address), "up", up)
	must(t, birds[killed.Address].Process.Kill())
	world.AwaitPeer(t, n, at(killed.Address), "down", func(p *manxv1.Peer) bool { return p.GetPhase() == "Failed" })
	for last, want := range map[byte][]string{
		37: {"Established Failed 1 withdrawn: %s ended the session: administrative shutdown",
			"Failed Established 1 -: established with AS 65000"},
		39:             {"Established Failed 1 withdrawn: hold timer expired: nothing was heard from %s"},
		killed.Address: {"Established Failed 1 kept: connection with %s lost"},
	} {
		out, err := n.Manxctl("history", "peer", fmt.Sprintf("p%d", last), "--no-headers")
		must(t, err)
		t.Logf("\n%s", out)
		want = append([]string{"Connecting Established 0 -: established with AS 65000"}, want...)
		for line := range strings.Lines(out) { // AT PEER FROM TO AFTER FLAPS ROUTES BFD REASON
			f := strings.Fields(line)
			got := fmt.Sprintf("%s %s %s %s: %s", f[2], f[3], f[5], f[6], strings.Join(f[8:], " "))
			if len(want) > 0 && strings.HasPrefix(got, strings.ReplaceAll(want[0], "%s", at(last).String())) {
				want = want[1:]
			}
		}
		if len(want) > 0 {
			t.Errorf("the history of p%d lacks %q", last, want)
		}
	}
}
