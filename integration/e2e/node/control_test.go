package node

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/integration/e2e/world"
	"github.com/manxnet/manx/integration/lab"
	"github.com/manxnet/manx/integration/namespace"
	"github.com/manxnet/manx/integration/stock"
	manxv1 "github.com/manxnet/manx/proto/manx/v1"
)

// control are two nodes and a router. The first node serves its control API to other hosts, with certificates made as
// in docs/control-api.md.
type control struct {
	*lab.Lab
	n1, n2 *lab.Node
	tor    *lab.ToR
	doc    string
	certs  string // folder
	tools  string // folder of the programs that the documentation names
}

// TestControlAPI makes calls of a node's control API, on the node and from another host, in each role.
func TestControlAPI(t *testing.T) {
	t.Parallel() // it has a lab of its own, and mostly waits
	if _, err := exec.LookPath("openssl"); err != nil {
		t.Skip("openssl is missing (Debian package openssl)")
	}
	doc, err := os.ReadFile("../../../docs/control-api.md")
	must(t, err)
	l := world.NewLab(t, lab.Spec{Name: world.LabName("o"), Nodes: []lab.NodeSpec{{Name: "n1"}, {Name: "n2"}}})
	c := &control{Lab: l, n1: l.Nodes[0], n2: l.Nodes[1], tor: l.ToRs[0], certs: filepath.Join(l.Dir, "certs"),
		tools: filepath.Join(l.Dir, "tools")}
	c.doc = strings.NewReplacer("10.0.0.11", c.n1.IP4.String(), "10.0.1.1", c.tor.Address(c.n1).String(),
		"/run/manx/manxd.sock", c.n1.Socket()).Replace(string(doc))
	c.makeTools(t)
	c.issue(t, c.certs)
	must(t, c.n1.StartManxd(append(c.n1.EmbedDatastore(), append(c.flags(c.n1, c.certs), "--no-default-pools")...)...))
	must(t, c.n1.Ready(limit))
	must(t, c.n2.StartManxd(append(lab.UseDatastore(c.n1), "--no-default-pools")...))
	must(t, c.n1.Apply(world.TorPeer(c.n1, "tor", c.tor.Address(c.n1), "")+"---"+
		world.TorPeer(c.n1, "ghost", netip.MustParseAddr("10.200.1.77"), "")))
	for _, a := range []netip.Addr{c.tor.Address(c.n1), c.n2.IP4} {
		c.awaitEstablished(t, a)
	}
	for _, test := range []struct {
		name string
		run  func(*control, *testing.T)
	}{
		{"soft resets keep the session", (*control).testSoft},
		{"a hard reset ends one session", (*control).testHard},
		{"only an established session is reset", (*control).testNotEstablished},
		{"retry", (*control).testRetry},
		{"drain and undrain", (*control).testDrain},
		{"as documented, from another host", (*control).testDocumented},
		{"who may not", (*control).testRefused},
		{"certificates are renewed", (*control).testRenewed},
		{"a listener without certificates waits for them", (*control).testWaits},
	} {
		if !t.Run(test.name, func(t *testing.T) { test.run(c, t) }) {
			break
		}
	}
}

// flags make a node serve its control API to others.
func (c *control) flags(n *lab.Node, certs string) []string {
	return []string{"--control-listen=" + n.IP4.String() + ":9443", "--control-ca-file=" + certs + "/ca.pem",
		"--control-cert-file=" + certs + "/node-1.pem",
		"--control-key-file=" + certs + "/node-1-key.pem", "--control-admins=ops",
		"--control-readers=nobody, monitoring"}
}

// makeTools puts manxctl, grpcurl and the documented client into a folder of PATH.
func (c *control) makeTools(t *testing.T) {
	t.Helper()
	must(t, os.MkdirAll(c.tools, 0o755))
	grpcurl, err := stock.Grpcurl.Path()
	must(t, err)
	must(t, os.Symlink(grpcurl, filepath.Join(c.tools, "grpcurl")))
	must(t, os.Symlink(filepath.Join(c.Spec.Bin, "manxctl"), filepath.Join(c.tools, "manxctl")))
	program, err := os.ReadFile(filepath.Join(c.Spec.Bin, "manxctl"))
	must(t, err)
	must(t, os.WriteFile(filepath.Join(c.tools, "manxctl-copy"), program, 0o755)) // where any user may run it
	build := exec.Command("go", "build", "-o", filepath.Join(c.tools, "control"), "../../../docs/examples/control")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// documented returns the commands below a heading of the documentation.
func (c *control) documented(t *testing.T, heading string) (commands []string) {
	t.Helper()
	_, section, _ := strings.Cut(c.doc, "### "+heading+"\n")
	section, _, _ = strings.Cut(section, "\n##")
	for i, block := range strings.Split(section, "```") {
		if script, ok := strings.CutPrefix(block, "sh\n"); ok && i%2 == 1 {
			commands = append(commands, strings.Split(strings.TrimSpace(script), "\n")...)
		}
	}
	if len(commands) == 0 {
		t.Fatalf("no commands below %q", heading)
	}
	return commands
}

// issue makes all certificates in a folder, as documented.
func (c *control) issue(t *testing.T, dir string) {
	t.Helper()
	must(t, os.MkdirAll(dir, 0o755))
	if out, err := c.shell(c.n1, dir, strings.Join(c.documented(t, "Certificates"), "\n")); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// shell runs commands on a node, in a folder.
func (c *control) shell(n *lab.Node, dir, script string) (string, error) {
	cmd := namespace.Command(n.Namespace, "sh", "-e", "-c", script)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "PATH="+c.tools+":"+os.Getenv("PATH"), "MANXCTL_CA_FILE=ca.pem")
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// ctl runs manxctl on the second node, with a certificate, for the daemon of the first.
func (c *control) ctl(certificate, command string) (string, error) {
	return c.shell(c.n2, c.certs, fmt.Sprintf("manxctl --server %s:9443 --cert-file %s.pem --key-file %s-key.pem %s",
		c.n1.IP4, certificate, certificate, command))
}

// awaitEstablished waits until a session of the first node is established, and returns it.
func (c *control) awaitEstablished(t *testing.T, a netip.Addr) (p *manxv1.Peer) {
	t.Helper()
	eventually(t, func() error {
		if p = world.Peer(t, c.n1, a); p.GetState() != "Established" {
			return fmt.Errorf("the session with %s is %s: %s", a, p.GetState(), p.GetReason())
		}
		return nil
	})
	return p
}

func (c *control) testSoft(t *testing.T) {
	tor := c.tor.Address(c.n1)
	before := c.awaitEstablished(t, tor)
	for _, kind := range []string{"soft-in", "soft-out"} {
		if out, err := c.n1.Manxctl("reset", "peer", tor.String(), "--"+kind); err != nil ||
			!strings.Contains(out, fmt.Sprintf("peer/%s reset (%s)", tor, kind)) {
			t.Fatalf("%v: %s", err, out)
		}
	}
	eventually(t, func() error { // the next ones as soon as possible
		out, err := c.n1.Manxctl("reset", "peer", "tor", "--soft-in")
		if world.ExitCode(err) != 1 || !strings.Contains(out, "too many soft resets of one session") {
			return fmt.Errorf("many at once are never too many: %w: %s", err, out)
		}
		return nil
	})
	// The peer shows the effect of the reset in the reply to a later query.
	eventually(t, func() error { _, err := c.tor.Birdc("show", "protocols", "all", "n1"); return err })
	after := c.awaitEstablished(t, tor)
	if after.GetEstablishedUnixMs() != before.GetEstablishedUnixMs() || after.GetFlaps() != before.GetFlaps() {
		t.Errorf("a soft reset ended the session: before %v, after %v", before, after)
	}
	world.Contains(t, "the log", c.n1.Log(), "control call", `"call": "/manx.v1.Manx/ResetPeer"`,
		`"object": "peer/`+tor.String()+`"`, `"caller_uid": 0`, `"caller_name": "manxctl"`,
		`"code": "ResourceExhausted"`)
}

func (c *control) testHard(t *testing.T) {
	tor := c.tor.Address(c.n1)
	before, other := c.awaitEstablished(t, tor), c.awaitEstablished(t, c.n2.IP4)
	if out, err := c.n1.Manxctl("reset", "peer", "tor", "--hard"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	eventually(t, func() error {
		if p := world.Peer(t, c.n1, tor); p.GetEstablishedUnixMs() <= before.GetEstablishedUnixMs() ||
			p.GetFlaps() != before.GetFlaps()+1 {
			return fmt.Errorf("the session is not a new one: %v, was %v", p, before)
		}
		return nil
	})
	if log := c.tor.Log(); !strings.Contains(log, "Administrative reset") {
		t.Errorf("the router got no Cease with administrative reset:\n%s", world.Tail(log, 20))
	}
	if p := c.awaitEstablished(t, c.n2.IP4); p.GetEstablishedUnixMs() != other.GetEstablishedUnixMs() {
		t.Errorf("another session was reset, too: %v", p)
	}
	c.awaitEstablished(t, tor)
	if out, err := c.n1.Manxctl("clear", "peer", tor.String()); err != nil || !strings.Contains(out, "flaps: 1") {
		t.Errorf("%v: %s", err, out)
	}
	if p := c.awaitEstablished(t, tor); p.GetFlaps() != 0 || p.GetLastError() != "" {
		t.Errorf("after clear: %v", p)
	}
	if n := world.Metric(t, c.n1, `manx_bgp_flaps_total{type="node"}`); n < 1 {
		t.Errorf("the sum of flaps is %v, want it to go on", n)
	}
}

func (c *control) testNotEstablished(t *testing.T) {
	for _, kind := range []string{"--hard", "--soft"} {
		out, err := c.n1.Manxctl("reset", "peer", "ghost", kind)
		if world.ExitCode(err) != 1 || !strings.Contains(out, "bgp session with 10.200.1.77 is not established") {
			t.Errorf("%s: %v: %s", kind, err, out)
		}
	}
	out, err := c.n1.Manxctl("reset", "peer", "10.200.1.78", "--hard")
	if world.ExitCode(err) != 1 || !strings.Contains(out, "there is no session with 10.200.1.78") ||
		!strings.Contains(out, c.tor.Address(c.n1).String()) || !strings.Contains(out, "10.200.1.77") {
		t.Errorf("an unknown peer: %v: %s", err, out)
	}
	if out, err := c.n1.Manxctl("clear", "peer", "nobody"); world.ExitCode(err) != 1 ||
		!strings.Contains(out, "The sessions are with") {
		t.Errorf("an unknown peer: %v: %s", err, out)
	}
}

// testRetry has an invalid object, and a route that the kernel refuses because a foreign route has its prefix.
func (c *control) testRetry(t *testing.T) {
	etcd := world.DialEtcd(t, c.n1)
	const key = "/calico/resources/v3/projectcalico.org/bgpfilters/broken"
	_, err := etcd.Put(t.Context(), key, "{")
	must(t, err)
	var out string
	eventually(t, func() error {
		if out, err = c.n1.Manxctl("retry"); world.ExitCode(err) != 4 ||
			!strings.Contains(strings.Join(strings.Fields(out), " "), "objects 1 1 ") {
			return fmt.Errorf("%v: %s", err, out)
		}
		return nil
	})
	_, err = etcd.Delete(t.Context(), key)
	must(t, err)
	eventually(t, func() error {
		if out, err = c.n1.Manxctl("retry"); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})

	dst := lab.External.String()
	eventually(t, func() error {
		if len(world.OurRoutesTo(t, c.n1, "-4", dst)) != 1 {
			return fmt.Errorf("no route to %s", dst)
		}
		return nil
	})
	foreign := fmt.Sprintf("%s dev lo proto static metric %d", dst, world.OurRoutesTo(t, c.n1, "-4", dst)[0].Metric)
	_, err = c.n1.Manxctl("delete", "bgppeer", "tor")
	must(t, err)
	eventually(t, func() error {
		if len(world.OurRoutesTo(t, c.n1, "-4", dst)) != 0 {
			return fmt.Errorf("there is still a route to %s", dst)
		}
		return nil
	})
	world.IP(t, c.n1, "route add "+foreign)
	must(t, c.n1.Apply(world.TorPeer(c.n1, "tor", c.tor.Address(c.n1), "")))
	eventually(t, func() error {
		if out, err = c.n1.Manxctl("retry"); world.ExitCode(err) != 4 ||
			!strings.Contains(strings.Join(strings.Fields(out), " "), "routes 1 1 ") {
			return fmt.Errorf("%v: %s", err, out)
		}
		return nil
	})
	t.Log(out)
	world.IP(t, c.n1, "route del "+foreign)
	if out, err := c.n1.Manxctl("retry"); err != nil {
		t.Errorf("after the cause is gone: %v: %s", err, out)
	}
	if len(world.OurRoutesTo(t, c.n1, "-4", dst)) != 1 {
		t.Errorf("the route to %s is not there after the retry", dst)
	}
}

// testDrain drains by the API and by the datastore in turn: both lead to the same state.
func (c *control) testDrain(t *testing.T) {
	annotated := func(want bool) {
		t.Helper()
		out, err := c.n2.Manxctl("get", "node", "n1", "-o", "yaml")
		if err != nil || strings.Contains(out, model.AnnotationDrain+":") != want {
			t.Errorf("the Node has the annotation: want %t, %v\n%s", want, err, out)
		}
	}
	if out, err := c.ctl("admin", "node drain n2"); world.ExitCode(err) != 1 ||
		!strings.Contains(out, `this is the daemon of node "n1"`) {
		t.Errorf("the drain of another node: %v: %s", err, out)
	}
	if out, err := c.ctl("admin", "node drain n1 --timeout 1s"); err != nil ||
		!strings.Contains(out, "node n1: drained: its routes are withdrawn") {
		t.Fatalf("%v: %s", err, out)
	}
	annotated(true)
	if out, err := c.n2.Manxctl("node", "drain", "n1"); err != nil || !strings.Contains(out, "is drained already") {
		t.Errorf("%v: %s", err, out)
	}
	if out, err := c.n2.Manxctl("node", "undrain", "n1"); err != nil || !strings.Contains(out, "in service") {
		t.Errorf("%v: %s", err, out)
	}
	annotated(false)
	if out, err := c.n2.Manxctl("node", "drain", "n1", "--no-wait"); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	if out, err := c.ctl("admin", "node undrain"); err != nil || !strings.Contains(out, "in service") {
		t.Errorf("%v: %s", err, out)
	}
	annotated(false)
}

// testDocumented runs the commands and the client of the documentation on another host.
func (c *control) testDocumented(t *testing.T) {
	tor := c.tor.Address(c.n1)
	c.awaitEstablished(t, tor)
	time.Sleep(6 * time.Second) // one more reset is allowed after the many earlier ones
	want := map[string]string{
		"status": "Node:       n1", "reset": "reset (soft-out)", "list manx.v1.Manx": "manx.v1.Manx.ResetPeer",
		"GetStatus":    `"node": "n1"`,
		"Health/Check": `"SERVING"`, "ClearPeer": `"peer": "` + tor.String() + `"`, "ListNotices": "{",
	}
	for _, heading := range []string{"manxctl", "grpcurl"} {
		for _, command := range c.documented(t, heading) {
			out, err := c.shell(c.n2, c.certs, command)
			said := ""
			for part, text := range want {
				if strings.Contains(command, part) {
					said = text
					delete(want, part)
				}
			}
			if err != nil && world.ExitCode(err) != 4 || said == "" || !strings.Contains(out, said) {
				t.Errorf("%s: %v, want %q\n%s", command, err, said, out)
			}
		}
	}
	if len(want) > 0 {
		t.Errorf("not documented: %v", want)
	}
	out, err := c.shell(c.n2, c.certs, "control "+c.n1.IP4.String()+":9443")
	if err != nil || !strings.Contains(out, tor.String()+" AS 65000 Established: ") ||
		!strings.Contains(out, "10.200.1.77 AS 65000 ") {
		t.Errorf("the client: %v\n%s", err, out)
	}
	world.Contains(t, "the log", c.n1.Log(), `"caller_subject": "CN=ops"`, `"caller_address": "`+c.n2.IP4.String()+":",
		`"caller_names": ["ops"]`)
	for _, command := range []string{"get peers", "node status", "node addresses", "routes", "describe peer tor",
		"node problems", "loglevel", "get policies", "version", "dump ruleset"} {
		if out, err := c.ctl("reader", command); err != nil {
			t.Errorf("%s: %v\n%s", command, err, out)
		}
	}
}

// testRefused: both sides report the reason.
func (c *control) testRefused(t *testing.T) {
	other := filepath.Join(c.Dir, "other")
	c.issue(t, other)
	_, err := c.shell(c.n1, c.certs, `cp `+other+`/admin.pem other.pem; cp `+other+`/admin-key.pem other-key.pem
openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=ops -keyout old-key.pem | openssl x509 -req -CA ca.pem -CAkey ca-key.pem -days 0 -out old.pem
openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=mallory -keyout mallory-key.pem | openssl x509 -req -CA ca.pem -CAkey ca-key.pem -days 1 -out mallory.pem`)
	must(t, err)
	pid := c.n1.Manxd().PID()
	for _, x := range []struct {
		certificate, command string
		code                 int
		text, logs           string
	}{
		{"other", "status", 4, "it does not accept the certificate in other.pem: no CA in its " +
			"--control-ca-file signed it", "certificate signed by unknown authority"},
		{"old", "status", 4, "it does not accept the certificate in old.pem, which is valid from",
			"certificate has expired"},
		{"mallory", "status", 1, `the certificate of "mallory" has no role here`, `"caller_subject": "CN=mallory"`},
		{"reader", "reset peer tor --hard", 1, `the certificate of "monitoring" may only read`,
			`"call": "/manx.v1.Manx/ResetPeer"`},
		{"reader", "node drain", 1, "may only read", `"call": "/manx.v1.Manx/Drain"`},
		{"reader", "loglevel debug", 1, "may only read", `"call": "/manx.v1.Manx/SetLogLevel"`},
		{"admin", "status --ca-file " + other + "/ca.pem", 4, "its certificate was not signed by a CA in " + other,
			"bad certificate"},
		{"admin", "status --tls-server-name n1.example.org", 4, "its certificate names another host",
			"bad certificate"},
	} {
		logged := len(c.n1.Log())
		out, err := c.ctl(x.certificate, x.command)
		if world.ExitCode(err) != x.code || !strings.Contains(out, x.text) {
			t.Errorf("%s: %s: %v, want exit code %d and %q\n%s", x.certificate, x.command, err, x.code, x.text, out)
		}
		eventually(t, func() error {
			if log := c.n1.Log()[logged:]; !strings.Contains(log, "refused") || !strings.Contains(log, x.logs) ||
				!strings.Contains(log, c.n2.IP4.String()+":") {
				return fmt.Errorf("%s: %s: the log lacks %q:\n%s", x.certificate, x.command, x.logs, log)
			}
			return nil
		})
	}
	for flag, logs := range map[string]string{"-insecure": "client didn't provide a certificate",
		"-plaintext": "first record does not look like a TLS handshake"} {
		if out, err := c.shell(c.n2, c.certs,
			fmt.Sprintf("grpcurl %s -connect-timeout 2 %s:9443 list", flag, c.n1.IP4)); err == nil {
			t.Errorf("grpcurl %s:\n%s", flag, out)
		}
		world.Contains(t, "the log", c.n1.Log(), logs)
	}
	// Another user of the node itself is refused, on the socket and over TCP without a certificate.
	for _, flags := range []string{"--socket " + c.n1.Socket(),
		"--server " + c.n1.IP4.String() + ":9443 --cert-file admin.pem --key-file admin-key.pem"} {
		cmd := namespace.Command(c.n1.Namespace, "sh", "-c",
			"setpriv --reuid 65534 --regid 65534 --clear-groups "+filepath.Join(c.tools, "manxctl-copy")+
				" reset peer tor --hard "+flags)
		cmd.Dir, cmd.Env = c.certs, append(os.Environ(), "MANXCTL_CA_FILE=ca.pem")
		if out, err := cmd.CombinedOutput(); world.ExitCode(err) != 1 || !strings.Contains(string(out),
			"permission denied") {
			t.Errorf("user nobody with %s: %v\n%s", flags, err, out)
		}
	}
	// A daemon without the setting does not listen.
	out, err := c.shell(c.n1, c.certs, fmt.Sprintf("manxctl --server %s:9443 --cert-file admin.pem --key-file "+
		"admin-key.pem status", c.n2.IP4))
	if world.ExitCode(err) != 4 || !strings.Contains(out, "no program listens there") {
		t.Errorf("a node without a listener: %v\n%s", err, out)
	}
	if c.n1.Manxd().PID() != pid {
		t.Error("the daemon has ended")
	}
}

// testRenewed replaces CA and certificates under the running daemon.
func (c *control) testRenewed(t *testing.T) {
	must(t, os.Rename(filepath.Join(c.certs, "admin.pem"), filepath.Join(c.certs, "past.pem")))
	must(t, os.Rename(filepath.Join(c.certs, "admin-key.pem"), filepath.Join(c.certs, "past-key.pem")))
	c.issue(t, c.certs)
	if out, err := c.ctl("admin", "loglevel info"); err != nil {
		t.Errorf("with the new certificate: %v\n%s", err, out)
	}
	if out, err := c.ctl("past", "status"); world.ExitCode(err) != 4 ||
		!strings.Contains(out, "no CA in its --control-ca-file signed it") {
		t.Errorf("with the certificate of the old CA: %v\n%s", err, out)
	}
}

// testWaits starts a daemon whose certificates appear later, and a daemon with settings that can never work.
func (c *control) testWaits(t *testing.T) {
	later := filepath.Join(c.Dir, "later")
	must(t, c.n2.Manxd().Stop(limit))
	if out, err := c.n2.Run(filepath.Join(c.Spec.Bin, "manxd"), "--control-listen=:9443"); world.ExitCode(err) != 2 ||
		!strings.Contains(out, "needs a CA file") {
		t.Errorf("a listener without certificates: %v\n%s", err, out)
	}
	must(t, c.n2.StartManxd(append(append(lab.UseDatastore(c.n1), c.flags(c.n2, later)...), "--no-default-pools")...))
	must(t, c.n2.Ready(limit))
	eventually(t, func() error {
		if out, err := c.n2.Manxctl("status"); !strings.Contains(out,
			"--control-listen="+c.n2.IP4.String()+":9443: not served, tried again: open "+later+"/ca.pem") {
			return fmt.Errorf("no notice: %w\n%s", err, out)
		}
		return nil
	})
	must(t, os.Mkdir(later, 0o755))
	_, err := c.shell(c.n1, c.certs, "cp *.pem "+later)
	must(t, err)
	eventually(t, func() error {
		out, err := c.shell(c.n1, c.certs, fmt.Sprintf("manxctl --server %s:9443 --tls-server-name node-1 "+
			"--cert-file reader.pem --key-file reader-key.pem status", c.n2.IP4))
		if world.ExitCode(err) == 4 && strings.Contains(out, "cannot be reached") || !strings.Contains(out,
			"Node:       n2") ||
			strings.Contains(out, "--control-listen") {
			return fmt.Errorf("%w\n%s", err, out)
		}
		return nil
	})
}
