package world

import (
	"cmp"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/manxnet/manx/integration/lab"
	"github.com/manxnet/manx/integration/namespace"
)

// Trouble is a session of a BGPPeer with BIRD, each with its own address, that does not come up or is lost.
type Trouble struct {
	Name        string
	Address     byte   // of the router
	Peer        string // fields of the BGPPeer
	Annotations string
	Bird        string // lines of BIRD's protocol; empty: BIRD has none
	Remote      uint32 // AS that BIRD expects; 64512 if 0
	Do          []string
	Pause       bool // BIRD falls silent

	Reason string
	By     string
	Calls  bool // this node connects again
}

// TroubleBIRD is a BIRD for one trouble: it has at most one session with an address.
type TroubleBIRD struct {
	*exec.Cmd
	socket string
}

// StartBIRD adds the address to the router and, if the trouble has lines for BIRD, runs BIRD there.
func (x Trouble) StartBIRD(t *testing.T, n *lab.Node, tor *lab.ToR, at func(byte) netip.Addr) *TroubleBIRD {
	t.Helper()
	in := func(args ...string) string {
		out, err := namespace.Command(tor.Namespace, args[0], args[1:]...).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
		return string(out)
	}
	back, err := n.Run("ip", "-o", "route", "get", tor.Address(n).String())
	Must(t, err)
	node := after(back, "src")
	if x.Address != 99 {
		in("ip", "addr", "add", at(x.Address).String()+"/24", "dev", after(in("ip", "-o", "route", "get", node), "dev"))
	}
	if x.Bird == "" {
		return nil
	}
	channel, lines := "export none;", x.Bird
	if strings.Contains(lines, "port ") { // import or export: of the channel
		channel, lines = lines, ""
	}
	config := fmt.Sprintf("log stderr all;\nrouter id %s;\nprotocol device { }\n", at(x.Address)) +
		"protocol static many { ipv4; route 10.1.0.0/24 blackhole; route 10.1.1.0/24 blackhole; route 10.1.2.0/24 " +
		"blackhole; }\n" +
		fmt.Sprintf("protocol bgp p%d {\n local %s as 65000; neighbor %s as %d; strict bind on; passive on; error "+
			"wait time 1, 2; %s\n ipv4 { import all; %s };\n}\n",
			x.Address, at(x.Address), node, cmp.Or(x.Remote, 64512), lines, channel)
	dir := t.TempDir()
	file := filepath.Join(dir, "bird.conf")
	Must(t, os.WriteFile(file, []byte(config), 0o644))
	b := &TroubleBIRD{namespace.Command(tor.Namespace, "bird", "-f", "-c", file, "-s", filepath.Join(dir, "ctl")),
		filepath.Join(dir, "ctl")}
	log, err := os.Create(filepath.Join(dir, "log"))
	Must(t, err)
	b.Stderr = log
	Must(t, b.Start())
	t.Cleanup(func() {
		_ = b.Process.Kill()
		_ = b.Wait()
		_ = log.Close()
		if text, err := os.ReadFile(log.Name()); err == nil && t.Failed() {
			t.Logf("BIRD:\n%s", Tail(string(text), 40))
		}
	})
	Eventually(t, func() error {
		_, err := os.Stat(b.socket)
		return err
	})
	return b
}

func (b *TroubleBIRD) Command(t *testing.T, words ...string) {
	t.Helper()
	out, err := exec.Command("birdc", append([]string{"-s", b.socket}, words...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("birdc %v: %v\n%s", words, err, out)
	}
}
