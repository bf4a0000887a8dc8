package bfd

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// startFRR runs bfdd of FRR. configure adds lines within "bfd".
func (x *twoHosts) startFRR() (configure func(lines ...string)) {
	x.t.Helper()
	dir, err := os.MkdirTemp("", "manx-frr") // the user frr cannot enter the folder of a test
	if err != nil {
		x.t.Fatal(err)
	}
	x.t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o777); err != nil {
		x.t.Fatal(err)
	}
	vtysh := func(daemon string, commands ...string) (string, bool) {
		args := []string{"--vty_socket", dir, "-d", daemon}
		for _, c := range commands {
			args = append(args, "-c", c)
		}
		out, err := exec.Command("vtysh", args...).CombinedOutput()
		return string(out), err == nil
	}
	file := func(name string) string { return filepath.Join(dir, name) }
	if err := os.WriteFile(file("frr.conf"), nil, 0o644); err != nil {
		x.t.Fatal(err)
	}
	for daemon, more := range map[string][]string{"zebra": nil, "bfdd": {"--bfdctl", file("bfdd.sock")}} {
		x.run(func() (string, bool) {
			out, ok := vtysh(daemon, "show version")
			return out, ok && strings.Contains(out, "FRRouting")
		}, "/usr/lib/frr/"+daemon, append([]string{"-f", file("frr.conf"), "-i", file(daemon + ".pid"), "-z",
			file("zserv.api"),
			"--vty_socket", dir, "-A", "127.0.0.1", "-u", "frr", "-g", "frr"}, more...)...)
	}
	return func(lines ...string) {
		x.t.Helper()
		if out, ok := vtysh("bfdd", append([]string{"configure terminal", "bfd"}, lines...)...); !ok ||
			strings.Contains(out, "%") {
			x.t.Fatalf("bfdd refuses %q: %s", lines, out)
		}
	}
}

func TestFRR(t *testing.T) {
	x := newTwoHosts(t, "/usr/lib/frr/bfdd", "/usr/lib/frr/zebra", "vtysh")
	configure := x.startFRR()
	const peer4, peer6 = "peer 10.77.0.1 local-address 10.77.0.2 interface eth0",
		"peer fd77::1 local-address fd77::2 interface eth0"
	const ms = time.Millisecond
	for _, p := range []string{peer4, peer6} {
		configure(p, "receive-interval 50", "transmit-interval 50", "detect-multiplier 6")
	}
	x.startEngine()
	four, six := path(their4, our4, fast), path(their6, our6, fast)
	four.Multiplier, six.Multiplier = 40, 40 // bfdd has normal priority: on a busy machine it is late
	x.set(four, six)
	timers := func(transmit, detection time.Duration) func(Status) bool {
		return func(s Status) bool { return s.State == Up && s.Transmit == transmit && s.Detection == detection }
	}
	x.awaitStatus("IPv4 up", their4, timers(50*ms, 300*ms))
	x.awaitStatus("IPv6 up", their6, timers(50*ms, 300*ms))

	configure(peer4, "receive-interval 400", "transmit-interval 100")
	x.awaitStatus("FRR's other intervals, each way", their4, timers(400*ms, 600*ms))
	slower := four
	slower.Receive = 300 * ms
	x.set(slower, six)
	x.awaitStatus("our slower receiving", their4, timers(400*ms, 1800*ms))
	configure(peer4, "receive-interval 50", "transmit-interval 50")
	x.set(four, six)
	x.awaitStatus("fast timers again", their4, timers(50*ms, 300*ms))
	for len(x.events) > 0 {
		if e := <-x.events; isDown(e) {
			t.Errorf("a change of timers ended a session: %+v", e)
		}
	}

	configure(peer4, "shutdown")
	if e := x.await("AdminDown of FRR", isDown); e.Failure || e.Status.RemoteState != AdminDown {
		t.Errorf("a session that FRR has shut down counts as failed: %+v", e)
	}
	configure(peer4, "no shutdown")
	x.awaitStatus("IPv4 up after the shutdown", their4, timers(50*ms, 300*ms))

	x.ip("-n", x.theirs, "link", "set", "eth0", "down")
	for range 2 {
		if e := x.await("the cut", isDown); !e.Failure {
			t.Errorf("a cut is no failure: %+v", e)
		}
	}
	x.ip("-n", x.theirs, "link", "set", "eth0", "up")
	x.ip("-n", x.theirs, "addr", "replace", their6.String()+"/64", "dev", "eth0", "nodad")
	x.awaitStatus("IPv4 back", their4, timers(50*ms, 300*ms))
	x.awaitStatus("IPv6 back", their6, timers(50*ms, 300*ms))

	configure("no " + peer4)
	configure("no " + peer6)
	four.Multihop, six.Multihop = true, true
	x.set(four, six)
	for _, p := range []string{"peer 10.77.0.1 multihop local-address 10.77.0.2",
		"peer fd77::1 multihop local-address fd77::2"} {
		configure(p, "receive-interval 50", "transmit-interval 50", "detect-multiplier 6")
	}
	x.awaitStatus("multihop IPv4 up", their4, timers(50*ms, 300*ms))
	x.awaitStatus("multihop IPv6 up", their6, timers(50*ms, 300*ms))
}
