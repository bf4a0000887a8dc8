package e2e

import (
	"cmp"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/manxnet/manx/integration/lab"
	manxv1 "github.com/manxnet/manx/proto/manx/v1"
)

// troubled is a session of a BGPPeer with BIRD, each on an address of its own, that does not come up or is lost.
type troubled struct {
	name        string
	address     byte   // of the router
	peer        string // fields of the BGPPeer
	annotations string
	bird        string // lines of BIRD's protocol; empty: BIRD has none
	remote      uint32 // AS that BIRD expects; 64512 if 0
	do          []string
	pause       bool // BIRD falls silent

	reason string
	by     string
	calls  bool // this node connects again by itself
}

var troubles = []troubled{
	{name: "another AS here", address: 31, peer: "asNumber: 65009", bird: " ",
		reason: "its AS is not 65009 as configured here (sent NOTIFICATION 2/2)", by: "sent", calls: true},
	{name: "another AS there", address: 32, peer: "asNumber: 65000", bird: " ", remote: 64999,
		reason: "it expects another AS, we are 64512 (received NOTIFICATION 2/2)", by: "received", calls: true},
	{name: "password only there", address: 33, peer: "asNumber: 65000", bird: `password "theirs";`,
		reason: "the peer wants an MD5 password and none is set here", by: "local", calls: true},
	{name: "another password", address: 34, peer: "asNumber: 65000, password: {secretKeyRef: {name: bgp, key: mine}}",
		bird: `password "theirs";`, reason: "a wrong MD5 password", by: "local", calls: true},
	{name: "nobody listens", address: 35, peer: "asNumber: 65000", reason: "nothing listens on port 1790", by: "local",
		calls: true},
	{name: "nobody has the address", address: 99, peer: "asNumber: 65000", reason: "no answer from", by: "local",
		calls: true},
	{name: "shut down there", address: 37, peer: "asNumber: 65000", bird: " ",
		do:     []string{"disable", "p37", `"new cables"`},
		reason: `administrative shutdown, saying "new cables" (received NOTIFICATION 6/2)`, by: "received"},
	{name: "too many prefixes for it", address: 38, peer: "asNumber: 65000",
		bird: "import limit 1 action disable; export none;", reason: "too many prefixes (received NOTIFICATION 6/1)",
		by: "received"},
	{name: "too many prefixes for us", address: 40, peer: "asNumber: 65000", annotations: `manx.io/max-prefixes: "2"`,
		bird:   "export where proto = \"many\";",
		reason: "announced more than 2 prefixes", by: "sent", calls: true},
	{name: "silence", address: 39, peer: "asNumber: 65000", bird: "hold time 3;", pause: true,
		reason: "hold timer expired: nothing was heard from", by: "sent", calls: true},
}

// TestReasonsOfSessions asks of each session that fails why, who said so, and when it is tried again.
func TestReasonsOfSessions(t *testing.T) {
	l := newLab(t, lab.Spec{Name: labName("w"), PlainRouters: true, Nodes: []lab.NodeSpec{{Name: "n1"}}})
	n, tor := l.Nodes[0], l.ToRs[0]
	must(t, os.MkdirAll(filepath.Join(secrets(n), "bgp"), 0o700))
	must(t, os.WriteFile(filepath.Join(secrets(n), "bgp", "mine"), []byte("ours\n"), 0o600))
	must(t, n.StartManxd(append(n.EmbedDatastore(), "--no-default-pools", "--bgp-password-dir", secrets(n))...))
	must(t, n.Ready(limit))

	at := func(last byte) netip.Addr {
		a := tor.Address(n).As4()
		a[3] = last
		return netip.AddrFrom4(a)
	}
	birds := map[byte]*troubledBIRD{}
	for _, x := range troubles {
		birds[x.address] = x.startBIRD(t, n, tor, at)
	}
	peersOf := ""
	for _, x := range troubles {
		address := at(x.address).String()
		if x.name == "nobody listens" {
			address += ":1790"
		}
		peersOf += fmt.Sprintf("\n---\napiVersion: projectcalico.org/v3\nkind: BGPPeer\n"+
			"metadata: {name: p%d, annotations: {%s}}\nspec: {node: n1, peerIP: %q, sourceAddress: None, %s}\n",
			x.address, x.annotations, address, x.peer)
	}
	must(t, n.Apply("apiVersion: projectcalico.org/v3\nkind: IPPool\nmetadata: {name: pods}\n"+
		"spec: {cidr: 10.244.0.0/16}\n---\napiVersion: projectcalico.org/v3\nkind: BGPConfiguration\n"+
		"metadata: {name: default}\n"+
		"spec: {serviceClusterIPs: [{cidr: 10.96.0.0/16}, {cidr: 10.97.0.0/16}]}"+peersOf))
	for _, x := range troubles {
		t.Run(x.name, func(t *testing.T) {
			if x.do != nil || x.pause {
				awaitPeer(t, n, at(x.address), "up", func(p *manxv1.Peer) bool {
					return p.GetPhase() == "Established" &&
						p.GetNextAttemptUnixMs() == 0
				})
			}
			if x.do != nil {
				birds[x.address].ask(t, x.do...)
			}
			if x.pause {
				must(t, birds[x.address].Process.Signal(syscall.SIGSTOP))
				defer birds[x.address].Process.Signal(syscall.SIGCONT) //nolint:errcheck // it may have ended
			}
			p := awaitPeer(t, n, at(x.address), x.reason, func(p *manxv1.Peer) bool {
				soon := time.Until(time.UnixMilli(p.GetNextAttemptUnixMs()))
				return strings.Contains(p.GetReason(), x.reason) && (!x.calls || soon > 0 && soon < 10*time.Minute)
			})
			if p.GetLastErrorBy() != x.by || p.GetLastError() != p.GetReason() || p.GetLastErrorAtUnixMs() == 0 ||
				p.GetPhase() != "Failed" {
				t.Errorf("session is %v, want Failed, last error by %s", p, x.by)
			}
			out, err := n.Manxctl("describe", "bgppeer", fmt.Sprintf("p%d", x.address))
			must(t, err)
			if !strings.Contains(out, x.reason) || !strings.Contains(out, "ago, "+x.by+": ") {
				t.Errorf("manxctl describe:\n%s", out)
			}
		})
	}
	out, err := n.Manxctl("get", "peers")
	must(t, err)
	if strings.Count(out, "\n") != len(troubles)+1 {
		t.Errorf("manxctl get peers:\n%s", out)
	}
	t.Logf("\n%s", out)
}

func awaitPeer(
	t *testing.T, n *lab.Node, address netip.Addr, what string, good func(*manxv1.Peer) bool,
) (p *manxv1.Peer) {
	t.Helper()
	eventually(t, func() error {
		if p = peer(t, n, address); !good(p) {
			return fmt.Errorf("session should be: %s\nis %v", what, p)
		}
		return nil
	})
	return p
}

// troubledBIRD is a BIRD for one trouble: it has at most one session with an address.
type troubledBIRD struct {
	*exec.Cmd
	socket string
}

// startBIRD gives the router the address and, if the trouble has lines for it, runs BIRD there.
func (x troubled) startBIRD(t *testing.T, n *lab.Node, tor *lab.ToR, at func(byte) netip.Addr) *troubledBIRD {
	t.Helper()
	in := func(args ...string) string {
		out, err := lab.InNamespace(tor.Namespace, args[0], args[1:]...).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
		return string(out)
	}
	back, err := n.Run("ip", "-o", "route", "get", tor.Address(n).String())
	must(t, err)
	node := after(back, "src")
	if x.address != 99 {
		in("ip", "addr", "add", at(x.address).String()+"/24", "dev", after(in("ip", "-o", "route", "get", node), "dev"))
	}
	if x.bird == "" {
		return nil
	}
	channel, lines := "export none;", x.bird
	if strings.Contains(lines, "port ") { // import or export: of the channel
		channel, lines = lines, ""
	}
	config := fmt.Sprintf("log stderr all;\nrouter id %s;\nprotocol device { }\n", at(x.address)) +
		"protocol static many { ipv4; route 10.1.0.0/24 blackhole; route 10.1.1.0/24 blackhole; route 10.1.2.0/24 " +
		"blackhole; }\n" +
		fmt.Sprintf("protocol bgp p%d {\n local %s as 65000; neighbor %s as %d; strict bind on; passive on; error "+
			"wait time 1, 2; %s\n ipv4 { import all; %s };\n}\n",
			x.address, at(x.address), node, cmp.Or(x.remote, 64512), lines, channel)
	dir := t.TempDir()
	file := filepath.Join(dir, "bird.conf")
	must(t, os.WriteFile(file, []byte(config), 0o644))
	b := &troubledBIRD{lab.InNamespace(tor.Namespace, "bird", "-f", "-c", file, "-s", filepath.Join(dir, "ctl")),
		filepath.Join(dir, "ctl")}
	log, err := os.Create(filepath.Join(dir, "log"))
	must(t, err)
	b.Stderr = log
	must(t, b.Start())
	t.Cleanup(func() {
		_ = b.Process.Kill()
		_ = b.Wait()
		_ = log.Close()
		if text, err := os.ReadFile(log.Name()); err == nil && t.Failed() {
			t.Logf("BIRD:\n%s", tail(string(text), 40))
		}
	})
	eventually(t, func() error {
		_, err := os.Stat(b.socket)
		return err
	})
	return b
}

func (b *troubledBIRD) ask(t *testing.T, words ...string) {
	t.Helper()
	out, err := exec.Command("birdc", append([]string{"-s", b.socket}, words...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("birdc %v: %v\n%s", words, err, out)
	}
}

// after is the word that follows another.
func after(text, word string) string {
	words := strings.Fields(text)
	for i, w := range words {
		if w == word && i+1 < len(words) {
			return words[i+1]
		}
	}
	return ""
}
