package lab

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/manxnet/manx/integration/namespace"
)

// ToR is a top-of-rack router: a namespace with BIRD that has an eBGP session to every node.
type ToR struct {
	Name      string
	Namespace string

	lab       *Lab
	dir       string
	switches  []int
	neighbors []neighbor
	bird      *Process
}

type neighbor struct {
	node    string
	subnet  int
	address byte
}

func (t *ToR) hasSwitch(subnet int) bool { return slices.Contains(t.switches, subnet) }

// start configures BIRD and runs it.
func (t *ToR) start() error {
	for _, s := range []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding",
		"net/ipv4/fib_multipath_hash_policy"} {
		if err := sysctl(t.Namespace, s, "1"); err != nil {
			return err
		}
	}
	if err := namespace.Batch(t.Namespace, fmt.Sprintf("addr add %s/32 dev lo", host(External, 1))); err != nil {
		return err
	}
	if t.lab.Spec.PlainRouters {
		return nil
	}
	if err := os.WriteFile(t.configFile(), []byte(t.config()), 0o644); err != nil {
		return err
	}
	return t.StartBIRD()
}

// StartBIRD runs BIRD, again after it has ended; "-R" has it recover by graceful restart.
func (t *ToR) StartBIRD(args ...string) (err error) {
	t.bird, err = t.lab.start("bird", t.dir, namespace.Command(t.Namespace, "bird",
		append([]string{"-f", "-c", t.configFile(), "-s", t.socket()}, args...)...))
	return err
}

// BIRD is the running router process.
func (t *ToR) BIRD() *Process { return t.bird }

// Log is the output of BIRD so far.
func (t *ToR) Log() string {
	b, err := os.ReadFile(filepath.Join(t.dir, "bird.log"))
	if err != nil {
		return err.Error()
	}
	return string(b)
}

func (t *ToR) configFile() string { return filepath.Join(t.dir, "bird.conf") }

func (t *ToR) socket() string { return filepath.Join(t.dir, "bird.ctl") }

// config is an operator's configuration for a rack of Calico nodes.
func (t *ToR) config() string {
	var b strings.Builder
	fmt.Fprintf(&b, "log stderr all;\nrouter id %s;\n", host(subnet4(t.neighbors[0].subnet), 1))
	b.WriteString("protocol device { scan time 5; }\nprotocol direct { ipv4; ipv6; }\n")
	fmt.Fprintf(&b, "protocol static outside { ipv4; route %s blackhole; }\n", External)
	b.WriteString("protocol kernel { ipv4 { export filter { if source = RTS_BGP then accept; reject; }; }; merge " +
		"paths on; graceful restart on; }\n")
	b.WriteString("protocol kernel { ipv6 { export filter { if source = RTS_BGP then accept; reject; }; }; merge " +
		"paths on; graceful restart on; }\n")
	if t.lab.Spec.BFD {
		b.WriteString("protocol bfd { interface \"*\" { min rx interval 100 ms; min tx interval 100 ms; " +
			"multiplier 3; }; }\n")
	}
	for _, n := range t.neighbors {
		if !t.lab.Spec.NoIPv4 {
			t.session(&b, n.node, subnet4(n.subnet), n.address, "ipv4")
		}
		if t.lab.Spec.IPv6 {
			t.session(&b, n.node+"_v6", subnet6(n.subnet), n.address, "ipv6")
		}
	}
	return b.String()
}

func (t *ToR) session(b *strings.Builder, name string, subnet netip.Prefix, address byte, family string) {
	fmt.Fprintf(b, "protocol bgp '%s' {\n  local %s as %d;\n  neighbor %s as %d;\n"+
		"  connect retry time 2; connect delay time 1; error wait time 1, 2;\n",
		name, host(subnet, 1), t.lab.Spec.TorAS, host(subnet, address), t.lab.Spec.NodeAS)
	if t.lab.Spec.BFD {
		b.WriteString("  bfd graceful;\n")
	}
	graceful := "on"
	if slices.Index(t.lab.ToRs, t) >= t.lab.Spec.ToRs-t.lab.Spec.HardToRs {
		graceful = "off"
	}
	fmt.Fprintf(b, "  graceful restart "+graceful+"; debug { states, events };\n"+
		"  %s { import all; export where proto = \"outside\"; };\n}\n", family)
}

// Birdc queries the router's BIRD.
func (t *ToR) Birdc(words ...string) (string, error) {
	return command("birdc", append([]string{"-s", t.socket()}, words...)...)
}

// Address is the router's address on the cable to a node.
func (t *ToR) Address(n *Node) netip.Addr { return t.addressOn(n, subnet4) }

// Address6 is its IPv6 address there.
func (t *ToR) Address6(n *Node) netip.Addr { return t.addressOn(n, subnet6) }

func (t *ToR) addressOn(n *Node, subnet func(int) netip.Prefix) netip.Addr {
	for _, nb := range t.neighbors {
		if nb.node == n.Name {
			return host(subnet(nb.subnet), 1)
		}
	}
	return netip.Addr{}
}

// Routes is the router's kernel routing table.
func (t *ToR) Routes() (string, error) { return command("ip", "-n", t.Namespace, "route", "show") }
