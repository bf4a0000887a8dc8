package speaker

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/manxnet/manx/bgp"
	"github.com/manxnet/manx/bgp/bfd"
	"github.com/manxnet/manx/integration/namespace"
	"github.com/manxnet/manx/integration/ports"
)

// bmpEvent is a BMP message in the output of pmacct's collector.
type bmpEvent struct {
	Event   string `json:"event_type"`
	Type    string `json:"bmp_msg_type"`
	Log     string `json:"log_type"`
	Peer    string `json:"peer_ip"`
	Prefix  string `json:"ip_prefix"`
	NextHop string `json:"bgp_nexthop"`
	Reason  any    `json:"reason_type"`
	SysName string `json:"bmp_init_info_sysname"`
}

// startCollector runs pmacct's BMP collector on loopback of a namespace, of this one if it has no name, and returns its
// address and the decoded messages.
func startCollector(t *testing.T, netns string) (addr netip.AddrPort, events func() []bmpEvent) {
	t.Helper()
	pmbmpd, err := exec.LookPath("pmbmpd")
	if err != nil {
		t.Skip("needs pmbmpd (Debian package pmacct)")
	}
	dir := t.TempDir()
	port := ports.Free(t, "127.0.0.1")
	file, conf := filepath.Join(dir, "bmp.json"), filepath.Join(dir, "conf")
	text := fmt.Sprintf("daemonize: false\nbmp_daemon_ip: 127.0.0.1\nbmp_daemon_port: %d\n"+
		"bmp_daemon_msglog_file: %s\nbmp_daemon_msglog_output: json\n", port, file)
	if err := os.WriteFile(conf, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(pmbmpd, "-f", conf)
	if netns != "" {
		cmd = namespace.Command(netns, pmbmpd, "-f", conf)
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait(); log.Close() })
	return netip.AddrPortFrom(ip("127.0.0.1"), port), func() (list []bmpEvent) {
		f, err := os.Open(file)
		if err != nil {
			return nil
		}
		defer f.Close()
		for s := bufio.NewScanner(f); s.Scan(); {
			var e bmpEvent
			if json.Unmarshal(s.Bytes(), &e) == nil {
				list = append(list, e)
			}
		}
		return list
	}
}

// awaitBMP waits until the messages that the collector has received meet a condition.
func awaitBMP(t *testing.T, events func() []bmpEvent, what string, cond func([]bmpEvent) bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		list := events()
		if cond(list) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the collector did not receive %s; it received %+v", what, list)
		}
	}
}

func TestBMPCollectorHearsOfSessionsAndRoutes(t *testing.T) {
	addr, events := startCollector(t, "")
	s, d := testSpeaker(t,
		Config{BMP: []BMP{{Collector: addr, Policy: bmpPrePolicy, SysName: "node-1", SysDescr: "Manx"}}})
	d.Sessions = append(d.Sessions, passive("127.0.0.2"))
	mustSet(t, s, d)
	await := func(what string, cond func(bmpEvent) bool) {
		t.Helper()
		awaitBMP(t, events, what, func(list []bmpEvent) bool { return slices.ContainsFunc(list, cond) })
	}
	await("the start", func(e bmpEvent) bool { return e.Type == "init" && e.SysName == "node-1" })
	p := dialFake(t, "127.0.0.2", listenOf(d), fakeOptions{as: 64512, id: "10.9.9.2"})
	awaitSession(t, s, "127.0.0.2", "established", established)
	await("the session", func(e bmpEvent) bool { return e.Type == "peer_up" && e.Peer == "127.0.0.2" })
	p.send(update("127.0.0.2", 0, 100, pfx("10.7.0.0/24")))
	await("the route", func(e bmpEvent) bool {
		return e.Type == "route_monitor" && e.Log == "update" && e.Prefix == "10.7.0.0/24" && e.NextHop == "127.0.0.2"
	})
	p.send(withdrawal(pfx("10.7.0.0/24")))
	await("the withdrawal", func(e bmpEvent) bool { return e.Log == "withdraw" && e.Prefix == "10.7.0.0/24" })
	p.conn.Close()
	await("the end of the session", func(e bmpEvent) bool { return e.Type == "peer_down" && e.Peer == "127.0.0.2" })
}

// A session with BFD, to BIRD, and a BMP collector beside it.
func TestBMPAndBFDBesideBIRD(t *testing.T) {
	t.Parallel()
	n := newBirdNet(t, []string{"10.77.0.1/24"}, []string{"10.77.0.2/24"})
	addr, events := startCollector(t, n.manx)
	n.start(birdHead + birdBFD + birdSession("ibgp4", "10.77.0.2", 64512, "10.77.0.1", "ipv4", "bfd on;"))
	d := birdDesired()
	s := birdPeer("10.77.0.2", "10.77.0.1", 64512)
	s.BFD = bgp.BFD{Enabled: true, Multihop: true, Transmit: 50 * time.Millisecond, Receive: 50 * time.Millisecond,
		Multiplier: 10}
	d.Sessions = []bgp.Session{s}
	c := startChild(t, n.manx, childBMP+"="+addr.String())
	c.set(d)
	up := func() {
		t.Helper()
		c.await("session and BFD", func() bool {
			st := c.sessions[s.Address]
			return st.Phase == PhaseEstablished && st.BFD != nil && st.BFD.State == bfd.Up
		})
		n.await("show route all protocol ibgp4", "10.244.1.0/26")
	}
	heard := func(what string, times int, cond func(bmpEvent) bool) {
		t.Helper()
		awaitBMP(t, events, what, func(list []bmpEvent) bool {
			n := 0
			for _, e := range list {
				if e.Peer == "10.77.0.2" && cond(e) {
					n++
				}
			}
			return n >= times
		})
	}
	up()
	heard("the session", 1, func(e bmpEvent) bool { return e.Type == "peer_up" })
	heard("a route", 1, func(e bmpEvent) bool { return e.Log == "update" })
	n.ip("-n", n.bird, "link", "set", "eth0", "down")
	c.await("the end that BFD caused", func() bool {
		return strings.Contains(c.sessions[s.Address].LastError, "BFD: the path")
	})
	n.ip("-n", n.bird, "link", "set", "eth0", "up")
	up()
	heard("the session again", 2, func(e bmpEvent) bool { return e.Type == "peer_up" })
	heard("a route again", 2, func(e bmpEvent) bool { return e.Log == "update" })
}

func TestParseBMPPolicy(t *testing.T) {
	if p, err := ParseBMPPolicy("post-policy"); p != bmpPostPolicy || err != nil {
		t.Errorf("post-policy: %v, %v", p, err)
	}
	if _, err := ParseBMPPolicy("both"); err == nil {
		t.Error("an unknown policy is accepted")
	}
}
