package interop

import (
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
)

// gobgpPort is the port of the API, on loopback of the router's namespace.
const gobgpPort = "50051"

// gobgp is GoBGP of Debian's package gobgpd, another major version than the one in Manx. It has no kernel routes.
type gobgp struct {
	site
	peering
	cmd *exec.Cmd
}

func (g *gobgp) name() string { return "GoBGP" }

func (g *gobgp) config(p peering) string {
	var c strings.Builder
	family := "ipv4-unicast"
	if p.manx.Is6() {
		family = "ipv6-unicast"
	}
	fmt.Fprintf(&c, "[global.config]\nas = %d\nrouter-id = %q\nlocal-address-list = [%q]\n", p.as, g.id, p.local)
	for _, peer := range append([]netip.Addr{p.manx}, p.others...) {
		fmt.Fprintf(&c, "[[neighbors]]\n[neighbors.config]\nneighbor-address = %q\npeer-as = %d\nauth-password = %q\n"+
			"[neighbors.transport.config]\nlocal-address = %q\n"+
			"[neighbors.timers.config]\nconnect-retry = 1\n"+
			"[neighbors.graceful-restart.config]\nenabled = true\nrestart-time = 60\n", peer, p.manxAS, p.password,
			p.local)
		if p.ttl {
			c.WriteString("[neighbors.ttl-security.config]\nenabled = true\nttl-min = 255\n")
		}
		if p.client {
			fmt.Fprintf(&c, "[neighbors.route-reflector.config]\nroute-reflector-client = true\n"+
				"route-reflector-cluster-id = %q\n", g.id)
		}
		fmt.Fprintf(&c, "[[neighbors.afi-safis]]\n[neighbors.afi-safis.config]\nafi-safi-name = %q\n"+
			"[neighbors.afi-safis.mp-graceful-restart.config]\nenabled = true\n"+
			"[neighbors.afi-safis.add-paths.config]\nreceive = true\nsend-max = 8\n", family)
	}
	return c.String()
}

func (g *gobgp) run(t *testing.T, p peering) {
	t.Helper()
	g.stop()
	g.peering = p
	g.write(t, "gobgp.toml", g.config(p))
	g.launch(t)
}

func (g *gobgp) launch(t *testing.T, args ...string) {
	t.Helper()
	g.cmd = g.start(t, "gobgpd", append([]string{"-f", g.file("gobgp.toml"), "-p", "--pprof-disable", "--api-hosts",
		"127.0.0.1:" + gobgpPort}, args...)...)
	eventually(t, func() error {
		if out := g.gobgp("global"); !strings.Contains(out, "Router-ID") {
			return fmt.Errorf("gobgpd does not answer: %s", out)
		}
		return nil
	})
	hops := g.nextHops
	if len(hops) == 0 {
		hops = []netip.Addr{g.local}
	}
	for _, prefix := range g.announce {
		for i, hop := range hops {
			words := []string{"global", "rib", "add", "-a", family(prefix), prefix.String(), "nexthop", hop.String(),
				"identifier", fmt.Sprint(i + 1), "origin", "igp"}
			if g.tagged {
				words = append(words, "community", tagStandard, "large-community", tagLarge)
			}
			if out := g.gobgp(words...); out != "" {
				t.Fatal(out)
			}
		}
	}
}

func family(p netip.Prefix) string {
	if p.Addr().Is6() {
		return "ipv6"
	}
	return "ipv4"
}

func (g *gobgp) stop()                { kill(g.cmd) }
func (g *gobgp) crash()               { kill(g.cmd) }
func (g *gobgp) recover(t *testing.T) { g.launch(t, "-r") }

func (g *gobgp) gobgp(words ...string) string {
	return run("ip", append([]string{"netns", "exec", g.ns, "gobgp", "-p", gobgpPort}, words...)...)
}

func (g *gobgp) routes(p netip.Prefix) string {
	return g.gobgp("global", "rib", "-a", family(p), p.String())
}

func (g *gobgp) paths(p netip.Prefix) int { return strings.Count(g.routes(p), p.String()) }
func (g *gobgp) sessions() string         { return g.gobgp("neighbor", g.manx.String()) }

// refresh: GoBGP evaluates the routes that it has again, and requests none.
func (g *gobgp) refresh() { g.gobgp("neighbor", g.manx.String(), "softresetin") }

// reset does not use the command reset, after which GoBGP waits for 30 s whatever its configuration.
func (g *gobgp) reset() {
	g.gobgp("neighbor", g.manx.String(), "disable")
	g.gobgp("neighbor", g.manx.String(), "enable")
}

func (g *gobgp) shows(a attribute, value string) string {
	switch a {
	case localPref:
		return "{LocalPref: " + value + "}"
	case asPath:
		return " " + value + " "
	case communities:
		return "{Communities: " + value + "}"
	case largeCommunities:
		return "{LargeCommunity: [ " + value + "]}"
	case originator:
		return "{Originator: " + value + "}"
	}
	return "{ClusterList: [" + value + "]}"
}
