package interop

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// openbgpd is OpenBGPD of Debian's package openbgpd. On Linux it has no kernel routes.
type openbgpd struct {
	site
	peering
	cmd *exec.Cmd
}

func (o *openbgpd) name() string { return "OpenBGPD" }

func (o *openbgpd) config(p peering) string {
	var c strings.Builder
	fmt.Fprintf(&c, "AS %d\nrouter-id %s\nsocket %q\nfib-update no\nconnect-retry 1\nlisten on %s\n", p.as, o.id,
		o.file("ctl"), p.local)
	// Next hops count as reachable only by routes of the kernel, or by BGP.
	c.WriteString("nexthop qualify via default\n")
	tags := ""
	if p.tagged {
		tags = fmt.Sprintf(" set { community %s large-community %s }", tagStandard, tagLarge)
	}
	for _, prefix := range p.announce {
		fmt.Fprintf(&c, "network %s%s\n", prefix, tags)
	}
	for i, peer := range append([]netip.Addr{p.manx}, p.others...) {
		fmt.Fprintf(&c, "neighbor %s {\n remote-as %d\n local-address %s\n announce add-path recv yes\n", peer,
			p.manxAS, p.local)
		if p.password != "" {
			fmt.Fprintf(&c, " tcp md5sig password %s\n", p.password)
		}
		if p.twoByte {
			c.WriteString(" announce as-4byte no\n")
		}
		if p.ttl {
			c.WriteString(" ttl-security yes\n")
		}
		if p.client {
			fmt.Fprintf(&c, " route-reflector\n descr client%d\n", i)
		}
		c.WriteString("}\n")
	}
	c.WriteString("allow from any\nallow to any\n")
	return c.String()
}

func (o *openbgpd) run(t *testing.T, p peering) {
	t.Helper()
	o.stop()
	// Each of its processes changes its root to this folder, which the unit of the package makes.
	must(t, os.MkdirAll("/run/openbgpd", 0o755))
	o.peering = p
	o.write(t, "bgpd.conf", o.config(p))
	must(t, os.Chmod(o.file("bgpd.conf"), 0o600)) // it refuses a file that others can read
	o.recover(t)
}

func (o *openbgpd) recover(t *testing.T) {
	t.Helper()
	o.cmd = o.start(t, "bgpd", "-d", "-v", "-f", o.file("bgpd.conf"))
	eventually(t, func() error {
		if out := o.bgpctl("show", "summary"); !strings.Contains(out, "Neighbor") {
			return errors.New("bgpd does not answer: " + out)
		}
		return nil
	})
}

func (o *openbgpd) stop() { o.crash() }

// crash also waits for the end of its other processes, which follows a moment later: while one of them serves the
// socket, the program does not start again.
func (o *openbgpd) crash() {
	kill(o.cmd)
	for {
		conn, err := net.Dial("unix", o.file("ctl"))
		if err != nil {
			return
		}
		_ = conn.Close()
		time.Sleep(10 * time.Millisecond)
	}
}

func (o *openbgpd) bgpctl(words ...string) string {
	return run("bgpctl", append([]string{"-s", o.file("ctl")}, words...)...)
}

func (o *openbgpd) routes(p netip.Prefix) string {
	return o.bgpctl("show", "rib", "detail", p.String())
}

func (o *openbgpd) paths(p netip.Prefix) int {
	return strings.Count(o.routes(p), "BGP routing table entry for "+p.String())
}

func (o *openbgpd) sessions() string { return o.bgpctl("show", "neighbor") }
func (o *openbgpd) refresh()         { o.bgpctl("neighbor", o.manx.String(), "refresh") }
func (o *openbgpd) reset()           { o.bgpctl("neighbor", o.manx.String(), "clear") }

func (o *openbgpd) shows(a attribute, value string) string {
	switch a {
	case localPref:
		return "localpref " + value
	case asPath:
		return "    " + value + "\n"
	case communities:
		return "Communities: " + value
	case largeCommunities:
		return "Large Communities: " + value
	case originator:
		return "Originator Id: " + value
	}
	return "Cluster Id List:  " + value
}
