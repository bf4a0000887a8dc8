package node

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/manxnet/manx/integration/e2e/world"
	"github.com/manxnet/manx/integration/lab"
)

// deployed is the folder of the unit and of the files that it needs.
const deployed = "../../../deploy/systemd"

// exposure is the exposure of the unit by systemd-analyze(1), from 0 (safe) to 10, as in docs/security.md.
var exposure = regexp.MustCompile(`Overall exposure level for manxd.service: (\d+\.\d) `)

// TestUnitExposure checks systemd's exposure of the unit: it is low, and docs/security.md has the same number.
func TestUnitExposure(t *testing.T) {
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Skip("systemd is not installed")
	}
	unit, err := filepath.Abs(filepath.Join(deployed, "manxd.service"))
	must(t, err)
	out, err := exec.Command("systemd-analyze", "security", "--offline=yes", "--no-pager", unit).CombinedOutput()
	must(t, err)
	m := exposure.FindSubmatch(out)
	if m == nil {
		t.Fatalf("no figure in:\n%s", out)
	}
	figure := string(m[1])
	if f, err := strconv.ParseFloat(figure, 64); err != nil || f >= 3 {
		t.Errorf("the exposure is %s, want less than 3.0:\n%s", figure, out)
	}
	doc, err := os.ReadFile("../../../docs/security.md")
	must(t, err)
	if !strings.Contains(string(doc), "**"+figure+"**") {
		t.Errorf("docs/security.md does not carry the figure %s", figure)
	}
	if out, err := exec.Command("systemd-analyze", "verify", "--man=no",
		unit).CombinedOutput(); strings.Contains(string(out), "manxd.service:") &&
		!strings.Contains(string(out), "/usr/local/bin/manxd is not executable") {
		t.Errorf("systemd complains (%v):\n%s", err, out)
	}
}

// denied are the words of the kernel, Go and systemd for a denied action.
var denied = regexp.MustCompile(
	`(?i)permission denied|operation not permitted|not supported by protocol|read-only file system|EPERM|EACCES|normal priority`)

// strict are settings in addition to those of the unit: a system call outside the unit's filter ends the daemon, and
// does not merely fail, so that the test detects it.
var strict = []string{"SystemCallErrorNumber=kill"}

// confined is a node under the shipped unit, and its peers.
type confined struct {
	*cluster
	*lab.Machine
	t *testing.T

	gtsm, md5 netip.Addr // routers that require these
}

const passwordsFolder = "/etc/manx/passwords"

// newConfined builds a rack with a node under the unit, n1, which embeds the datastore, and one beside it, n2.
func newConfined(t *testing.T, pools string, settings []string, args ...string) *confined {
	t.Helper()
	if _, err := os.Stat("/lib/systemd/systemd"); err != nil {
		t.Skip("systemd is not installed")
	}
	l := world.NewLab(t, lab.Spec{Name: world.LabName("u"), IPv6: true, PlainRouters: true,
		Nodes: []lab.NodeSpec{{Name: "n1"}, {Name: "n2"}}})
	c := &confined{cluster: &cluster{&world.Cluster{Lab: l, N1: l.Nodes[0], N2: l.Nodes[1], ToR1: l.ToRs[0],
		Pods: map[string]*lab.Pod{}}}, t: t}
	flags := []string{"--no-default-pools", "--ip=autodetect", "--ip6=autodetect"}
	m, err := c.N1.Boot(deployed, settings, append(append(c.N1.EmbedDatastore(), flags...),
		append(args, "--log-level=debug", "--bgp-password-dir="+passwordsFolder)...)...)
	must(t, err)
	c.Machine = m
	c.writePasswords()
	must(t, c.N1.Ready(limit))
	must(t, c.N1.Apply(pools))
	// n1 makes the kernel load the module, not n2, which runs as root
	if strings.Contains(pools, "ipipMode: Always") {
		eventually(t, func() error { _, err := c.N1.Run("ip", "link", "show", "up", "dev", "tunl0"); return err })
	}
	must(t, os.MkdirAll(filepath.Join(world.Secrets(c.N2), "bgp"), 0o700))
	must(t, os.WriteFile(filepath.Join(world.Secrets(c.N2), "bgp", "mesh"), []byte("between nodes"), 0o600))
	must(t, c.N2.StartManxd(append(lab.UseDatastore(c.N1), append(flags,
		"--bgp-password-dir="+world.Secrets(c.N2))...)...))
	must(t, c.N2.Ready(limit))
	return c
}

// writePasswords follows docs/security.md for files that manxd reads: owned by root, readable for its group.
func (c *confined) writePasswords() {
	c.t.Helper()
	for name, text := range map[string]string{"mesh": "between nodes", "router": "theirs"} {
		must(c.t, c.Write(filepath.Join(passwordsFolder, "bgp", name), text))
	}
	for _, command := range [][]string{{"chown", "-R", "root:manx", passwordsFolder},
		{"chmod", "-R", "u=rwX,g=rX,o=", passwordsFolder}} {
		_, err := c.Run(command[0], command[1:]...)
		must(c.t, err)
	}
}

// pid of the daemon, as the host counts.
func (c *confined) pid() string {
	c.t.Helper()
	out, err := exec.Command("ip", "netns", "pids", c.N1.Namespace).Output()
	must(c.t, err)
	for pid := range strings.FieldsSeq(string(out)) {
		if name, err := os.ReadFile("/proc/" + pid + "/comm"); err == nil && string(name) == "manxd\n" {
			return pid
		}
	}
	c.t.Fatalf("manxd does not run:\n%s\n%s", c.Log(), world.Tail(c.N1.Log(), 20))
	return ""
}

// checkConfined checks the process itself: it has exactly the three capabilities.
func (c *confined) checkConfined() {
	c.t.Helper()
	status, err := os.ReadFile("/proc/" + c.pid() + "/status")
	must(c.t, err)
	limits, err := os.ReadFile("/proc/" + c.pid() + "/limits")
	must(c.t, err)
	if !regexp.MustCompile(`Max core file size +1 +1 `).Match(limits) {
		c.t.Errorf("a core dump, with passwords, is possible:\n%s", limits)
	}
	// CAP_NET_BIND_SERVICE (10), CAP_NET_ADMIN (12), CAP_SYS_NICE (23)
	const three = "0000000000801400"
	for field, want := range map[string]string{"CapInh": three, "CapPrm": three, "CapEff": three,
		"CapBnd": three, "CapAmb": three, "NoNewPrivs": "1", "Seccomp": "2"} {
		if !strings.Contains(string(status), fmt.Sprintf("\n%s:\t%s\n", field, want)) {
			c.t.Errorf("%s is not %s:\n%s", field, want, status)
		}
	}
	if strings.Contains(string(status), "\nUid:\t0") {
		c.t.Errorf("manxd runs as root:\n%s", status)
	}
}

// checkDenials fails if anything was denied so far, or if the daemon ended unexpectedly.
func (c *confined) checkDenials() {
	c.t.Helper()
	for line := range strings.Lines(c.N1.Log()) {
		if denied.MatchString(line) {
			c.t.Errorf("denied: %s", line)
		}
	}
	if n, err := c.Property("NRestarts"); err != nil || n != "0" {
		c.t.Errorf("systemd had to start manxd again: %s, %v\n%s", n, err, c.Log())
	}
}

// router runs a further BIRD that peers with the node from its own address.
func (c *confined) router(x world.Trouble) netip.Addr {
	c.t.Helper()
	at := func(last byte) netip.Addr {
		a := c.ToR1.Address(c.N1).As4()
		a[3] = last
		return netip.AddrFrom4(a)
	}
	x.StartBIRD(c.t, c.N1, c.ToR1, at)
	return at(x.Address)
}

// unitPools has one pool for each family.
const unitPools = `
apiVersion: projectcalico.org/v3
kind: IPPool
metadata: {name: pods4}
spec: {cidr: 10.244.0.0/16, blockSize: 28, ipipMode: %s, natOutgoing: true}
---
apiVersion: projectcalico.org/v3
kind: IPPool
metadata: {name: pods6}
spec: {cidr: "fd00:10:244::/112", blockSize: 124, natOutgoing: true}
`

// TestUnit runs all functions under the shipped unit, which systemd itself confines: nothing is denied.
func TestUnit(t *testing.T) {
	t.Parallel() // it has a lab of its own, and mostly waits
	c := newConfined(t, fmt.Sprintf(unitPools, "Never"), strict,
		"--flow-log=/var/log/manx/flows.json", "--flow-log-rate=1000", "--policy-counters")
	c.checkConfined()
	c.gtsm = c.router(world.Trouble{Address: 41, Bird: "ttl security on;"})
	c.md5 = c.router(world.Trouble{Address: 42, Bird: `password "theirs";`})
	for _, test := range []struct {
		name string
		run  func(*confined, *testing.T)
	}{
		{"sessions with MD5, GTSM and BFD", (*confined).testSessions},
		{"20,000 routes", (*confined).testRoutes},
		{"pods, policy, flow log, explain --live, bandwidth", (*confined).testPods},
		{"files and sockets", (*confined).testFiles},
		{"drain and restart", (*confined).testUnitRestart},
		{"a daemon that hangs is replaced", (*confined).testUnitHang},
	} {
		if !t.Run(test.name, func(t *testing.T) { c := *c; c.t = t; test.run(&c, t); c.checkDenials() }) {
			return
		}
	}
	c.checkConfined()
	t.Run("as root", func(t *testing.T) { c := *c; c.t = t; c.testUnitAsRoot(t) })
	t.Run("each capability is needed", func(t *testing.T) { c := *c; c.t = t; c.testEachCapability(t) })
	t.Run("cleanup", func(t *testing.T) { c := *c; c.t = t; c.testUnitCleanup(t) })
}

// unitSessions are those with n2 for IPv4 and IPv6, and with two routers.
const unitSessions = 4

// meshAndRouters is one session of each type.
func (c *confined) meshAndRouters() string {
	bfd := `annotations: {manx.io/bfd: "true", manx.io/bfd-interval: 300ms}`
	peer := func(name string, address netip.Addr, more string) string {
		return fmt.Sprintf("---\napiVersion: projectcalico.org/v3\nkind: BGPPeer\nmetadata: {name: %s}\nspec: {node: "+
			"n1, peerIP: %s, asNumber: 65000%s}\n", name, address, more)
	}
	return "apiVersion: projectcalico.org/v3\nkind: BGPConfiguration\nmetadata: {name: default, " + bfd + "}\n" +
		"spec: {nodeMeshPassword: {secretKeyRef: {name: bgp, key: mesh}}}\n" +
		peer("gtsm", c.gtsm, ", ttlSecurity: 1") + peer("md5", c.md5,
		", password: {secretKeyRef: {name: bgp, key: router}}")
}

func (c *confined) testSessions(t *testing.T) {
	must(t, c.N1.Apply(c.meshAndRouters()))
	c.Established(t, c.N1, unitSessions)
	eventually(t, func() error {
		for _, a := range []netip.Addr{c.N2.IP4, c.N2.IP6} {
			if b := world.Peer(t, c.N1, a).GetBfd(); b.GetState() != "Up" {
				return fmt.Errorf("BFD with %s is %q: %s", a, b.GetState(), b.GetReason())
			}
		}
		return nil
	})
	out, err := exec.Command("ps", "-L", "-o", "ni=", "-p", c.pid()).Output()
	must(t, err)
	if !strings.Contains(string(out), "-20") || !strings.Contains(string(out), "-15") {
		t.Errorf("BFD's threads have no priority: nice values %v", strings.Fields(string(out)))
	}
	// A router's answer to an OPEN with a wrong AS is read from a packet socket.
	wrong := c.router(world.Trouble{Address: 43, Bird: " ", Remote: 64999})
	object := fmt.Sprintf("{apiVersion: projectcalico.org/v3, kind: BGPPeer, metadata: {name: wrong}, spec: {node: "+
		"n1, peerIP: %s, asNumber: 65000}}", wrong)
	must(t, c.N1.Apply(object))
	eventually(t, func() error {
		if p := world.Peer(t, c.N1, wrong); !strings.Contains(p.GetReason(), "it expects another AS") {
			return fmt.Errorf("the reason is %q", p.GetReason())
		}
		return nil
	})
	_, err = c.N1.Manxctl("delete", "bgppeer", "wrong")
	must(t, err)
}

func (c *confined) testRoutes(t *testing.T) {
	const many = 20_000
	from := c.router(world.Trouble{Address: 44})
	object := fmt.Sprintf("{apiVersion: projectcalico.org/v3, kind: BGPPeer, metadata: {name: many}, spec: {node: "+
		"n1, peerIP: %s, asNumber: 65010}}", from)
	must(t, c.N1.Apply(object))
	p, err := lab.ConnectPeerFrom(c.ToR1.Namespace, from, netip.AddrPortFrom(c.N1.IP4, 179).String(), 65010,
		200_000_000)
	must(t, err)
	all := lab.Prefixes(many)
	for i := 0; i < many; i += 500 {
		must(t, p.Send(lab.Announce(65010, from, all[i:i+500])))
	}
	must(t, p.Send(lab.EndOfRIB()))
	count := func(want int) {
		t.Helper()
		eventually(t, func() error {
			if n := len(world.Routes(t, c.N1.Namespace, "-4", "via", from.String())); n != want {
				return fmt.Errorf("%d routes are in the kernel, want %d", n, want)
			}
			return nil
		})
	}
	count(many)
	_, err = c.N1.Manxctl("delete", "bgppeer", "many")
	must(t, err)
	p.Close()
	count(0)
}

func (c *confined) testPods(t *testing.T) {
	n, a, b := c.N1, c.AddPod(t, c.N1, "n1-p1"), c.AddPod(t, c.N1, "n1-p2")
	c.AddPod(t, c.N2, "n2-p1")
	c.Reachable(t, "n1-p1", "n2-p1")
	must(t, n.Apply(world.GlobalPolicy("server",
		"selector: all(), types: [Ingress], ingress: [{action: Log, protocol: TCP, "+
			"destination: {ports: [7001]}}, {action: Deny, protocol: TCP, destination: {ports: [7001]}}, "+
			"{action: Allow}]")))
	for _, port := range []int{7001, 7002} {
		world.ListenTCP(t, b.Namespace, port, func(conn net.Conn) { conn.Close() })
	}
	if !world.ConnectsTCP(t, a.Namespace, b.IP4(), 7002, true) {
		t.Error("what is allowed does not pass")
	}
	eventually(t, func() error {
		if world.ConnectsTCP(t, a.Namespace, b.IP4(), 7001, false) {
			return fmt.Errorf("what is denied passes")
		}
		return nil
	})
	eventually(t, func() error {
		text, err := os.ReadFile(c.Path("var/log/manx/flows.json"))
		if err == nil && !strings.Contains(string(text), `"destinationPort":7001`) {
			err = fmt.Errorf("the flow log has:\n%s", text)
		}
		if err != nil {
			world.ConnectsTCP(t, a.Namespace, b.IP4(), 7001, false)
		}
		return err
	})
	x := world.StartLiveExplain(t, n, "--output=text", a.IP4().String(), b.IP4().String(), "tcp/7001")
	world.ConnectsTCP(t, a.Namespace, b.IP4(), 7001, false)
	x.End(0, "The kernel agrees: DENIED by GlobalNetworkPolicy/server ingress 2")
	must(t, a.EditEndpoint(func(r lab.Resource) {
		r.Spec()["qosControls"] = map[string]any{"ingressBandwidth": 10000000, "ingressBurst": 800000,
			"egressBandwidth": 20000000, "egressBurst": 800000}
	}))
	eventually(t, func() error {
		out, err := n.Run("tc", "qdisc", "show")
		if status, _ := n.Manxctl("status"); err == nil && !strings.Contains(out, "rate 20Mbit") &&
			!strings.Contains(status, "not supported by this kernel") {
			err = fmt.Errorf("no limit:\n%s\n%s", out, status)
		}
		return err
	})
}

// testFiles checks which files others can read, and reaches the daemon as root does.
func (c *confined) testFiles(t *testing.T) {
	if out, err := c.Run("systemctl", "start", "manx-birdsock"); err != nil {
		t.Errorf("manx-birdsock: %v %s", err, out)
	}
	eventually(t, func() error { _, err := os.Stat(c.Path("run/calico/bird6.ctl")); return err })
	// Members of the group manx read the keys in /etc/manx: users of BIRD's socket have another one.
	if out, err := c.Run("stat", "-c", "%U:%G", "/run/calico/bird.ctl"); err != nil ||
		strings.TrimSpace(out) != "manx:manx-bird" {
		t.Errorf("bird.ctl belongs to %s %v", out, err)
	}
	modes := map[string]os.FileMode{
		"var/lib/manx": 0o700, "var/log/manx": 0o750, "var/log/manx/flows.json": 0o640, "run/manx": 0o755,
		"run/manx/manxd.sock": 0o600, "run/manx/gobgp.sock": 0o600,
		"run/calico/bird.ctl": 0o660, "var/lib/calico/nodename": 0o644, "var/lib/calico/mtu": 0o644,
		"run/calico/endpoint-status": 0o755, "run/calico": 0o775, "etc/manx": 0o750,
	}
	ofRoot := []string{"etc/manx", "run/calico"}
	for path, want := range modes {
		info, err := os.Stat(c.Path(path))
		if err != nil {
			t.Error(err)
			continue
		}
		if got := info.Mode().Perm(); got != want {
			t.Errorf("%s has mode %o, want %o", path, got, want)
		}
		if owner := info.Sys().(*syscall.Stat_t).Uid; (owner == 0) != slices.Contains(ofRoot, path) {
			t.Errorf("%s is owned by uid %d", path, owner)
		}
	}
	for _, command := range [][]string{{"birdc", "-s", c.Path("run/calico/bird.ctl"), "show", "status"},
		{"gobgp", "neighbor"}} {
		if _, err := exec.LookPath(command[0]); err != nil {
			continue
		}
		if out, err := c.N1.Run(command[0], command[1:]...); err != nil {
			t.Errorf("%v: %v %s", command, err, out)
		}
	}
}

// testUnitRestart drains and undrains the node. systemd starts the daemon again after an orderly end and after a kill.
func (c *confined) testUnitRestart(t *testing.T) {
	for _, verb := range []string{"drain", "undrain"} {
		if out, err := c.N1.Manxctl("node", verb, "n1"); err != nil {
			t.Errorf("%s: %v %s", verb, err, out)
		}
	}
	must(t, c.Machine.Restart())
	must(t, c.N1.Ready(limit))
	c.Established(t, c.N1, unitSessions)
	c.Reachable(t, "n1-p1", "n2-p1")
	c.checkDenials()
	_, err := c.Run("systemctl", "kill", "--kill-whom=main", "-s", "KILL", "manxd")
	must(t, err)
	c.startedAgain(t, "1")
	c.Established(t, c.N1, unitSessions)
	c.Reachable(t, "n1-p1", "n2-p1")
	must(t, c.Machine.Restart()) // counts from 0 again
	must(t, c.N1.Ready(limit))
}

// startedAgain waits until systemd has started the daemon so many times again, and the node is ready.
func (c *confined) startedAgain(t *testing.T, times string) {
	t.Helper()
	eventually(t, func() error {
		if n, err := c.Property("NRestarts"); err != nil || n != times {
			return fmt.Errorf("started again %s times: %v", n, err)
		}
		return nil
	})
	must(t, c.N1.Ready(limit))
}

// testUnitHang stops the daemon, so that it does not report to systemd: systemd starts another one.
func (c *confined) testUnitHang(t *testing.T) {
	for name, want := range map[string]string{"Type": "notify", "WatchdogUSec": "40s"} {
		if have, err := c.Property(name); err != nil || have != want {
			t.Errorf("%s of the unit is %q, %v; want %q", name, have, err, want)
		}
	}
	must(t, c.Configure(append(strict, "WatchdogSec=4")...)) // sooner than the unit's
	must(t, c.Machine.Restart())
	must(t, c.N1.Ready(limit))
	time.Sleep(6 * time.Second) // longer than WatchdogSec: nothing may happen while it works
	if n, err := c.Property("NRestarts"); err != nil || n != "0" {
		t.Errorf("a daemon that works was started again %s times: %v", n, err)
	}
	_, err := c.Run("systemctl", "kill", "--kill-whom=main", "-s", "STOP", "manxd")
	must(t, err)
	c.startedAgain(t, "1")
	c.Established(t, c.N1, unitSessions)
	c.Reachable(t, "n1-p1", "n2-p1")
	_, err = c.Run("systemctl", "kill", "--kill-whom=main", "-s", "ABRT", "manxd") // ends it as a panic does
	must(t, err)
	c.startedAgain(t, "2")
	must(t, c.Configure(strict...))
	must(t, c.Machine.Restart())
	must(t, c.N1.Ready(limit))
}

// testUnitAsRoot follows docs/security.md to run the same unit as root, and then returns to the own user.
func (c *confined) testUnitAsRoot(t *testing.T) {
	folders := func(from, to string) {
		_, err := c.Run("sed", "-i", `s/ `+from+`\b/ `+to+`/g`, "/etc/tmpfiles.d/manx.conf")
		must(t, err)
		_, err = c.Run("systemd-tmpfiles", "--create", "manx.conf")
		must(t, err)
	}
	manx, err := os.ReadFile(c.Path("etc/tmpfiles.d/manx.conf"))
	must(t, err)
	folders("manx", "root")
	must(t, c.Configure(append(strict, "User=root", "Group=root")...))
	must(t, c.Machine.Restart())
	must(t, c.N1.Ready(limit))
	c.Established(t, c.N1, unitSessions)
	c.AddPod(t, c.N1, "n1-p3")
	c.Reachable(t, "n1-p3", "n2-p1")
	c.checkDenials()
	must(t, c.Write("etc/tmpfiles.d/manx.conf", string(manx)))
	folders("manx", "manx")
	must(t, c.Configure(strict...))
	must(t, c.Machine.Restart())
	must(t, c.N1.Ready(limit))
	c.AddPod(t, c.N1, "n1-p4")
	c.checkConfined()
	c.checkDenials()
}

// testEachCapability removes one capability after the other: each time something is denied. So the unit has no
// unnecessary capability, and the other tests would detect a missing one.
func (c *confined) testEachCapability(t *testing.T) {
	all := []string{"CAP_NET_ADMIN", "CAP_NET_BIND_SERVICE", "CAP_SYS_NICE"}
	patterns := []string{"nflog: operation not permitted",
		"listen tcp4 .*:179: bind: permission denied", "normal priority.*permission denied"}
	for i, without := range all {
		words := regexp.MustCompile(patterns[i])
		rest := strings.Join(slices.Delete(slices.Clone(all), i, i+1), " ")
		must(t, c.Configure(append(strict, "CapabilityBoundingSet=", "CapabilityBoundingSet="+rest,
			"AmbientCapabilities=", "AmbientCapabilities="+rest)...))
		before := len(c.N1.Log())
		must(t, c.Machine.Restart())
		eventually(t, func() error {
			for line := range strings.Lines(c.N1.Log()[before:]) {
				if words.MatchString(line) {
					t.Logf("without %s: %s", without, strings.TrimSpace(line))
					return nil
				}
			}
			return fmt.Errorf("without %s nothing is denied", without)
		})
	}
}

// testUnitCleanup removes, as root, the objects that the user manx has left.
func (c *confined) testUnitCleanup(t *testing.T) {
	files := func() []string {
		list, err := filepath.Glob(c.Path("run/calico/endpoint-status/*"))
		must(t, err)
		return list
	}
	if len(files()) == 0 {
		t.Error("there is no status file of an endpoint")
	}
	_, err := c.Run("systemctl", "stop", "manxd")
	must(t, err)
	out, err := c.Run("/usr/local/bin/manxd", "cleanup")
	if err != nil || len(files()) > 0 || !strings.Contains(out, "removed the table inet manx") {
		t.Errorf("cleanup: %v\n%s\nleft: %v", err, out, files())
	}
}

// TestVMUnit runs a pool over IPIP under the shipped unit, on a kernel that has IPIP as a module: tunl0 is made, and
// loads it.
func TestVMUnit(t *testing.T) {
	if os.Getenv("MANX_VM") == "" {
		t.Skip("it needs a kernel with IPIP; `make test-vm` runs it on one that has")
	}
	if out, err := exec.Command("modprobe", "-r", "ipip").CombinedOutput(); err != nil {
		t.Logf("the module stays: %v: %s", err, out)
	}
	c := newConfined(t, fmt.Sprintf(unitPools, "Always"), strict)
	c.checkConfined()
	c.AddPod(t, c.N1, "n1-p1")
	c.AddPod(t, c.N2, "n2-p1")
	c.Reachable(t, "n1-p1", "n2-p1")
	if list := world.Routes(t, c.N1.Namespace, "-4", "dev", "tunl0"); len(list) == 0 {
		t.Error("no route of n1 goes through tunl0")
	}
	c.checkDenials()
}
