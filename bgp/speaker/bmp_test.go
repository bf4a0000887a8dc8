package speaker

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

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

// startCollector runs pmacct's BMP collector on loopback and returns its address and the decoded messages.
func startCollector(t *testing.T) (addr netip.AddrPort, events func() []bmpEvent) {
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

func TestBMPCollectorHearsOfSessionsAndRoutes(t *testing.T) {
	addr, events := startCollector(t)
	s, d := testSpeaker(t,
		Config{BMP: []BMP{{Collector: addr, Policy: bmpPrePolicy, SysName: "node-1", SysDescr: "Manx"}}})
	d.Sessions = append(d.Sessions, passive("127.0.0.2"))
	mustSet(t, s, d)
	await := func(what string, cond func(bmpEvent) bool) {
		t.Helper()
		for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
			list := events()
			for _, e := range list {
				if cond(e) {
					return
				}
			}
			if time.Now().After(deadline) {
				t.Fatalf("the collector did not receive %s; it received %+v", what, list)
			}
		}
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

func TestParseBMPPolicy(t *testing.T) {
	if p, err := ParseBMPPolicy("post-policy"); p != bmpPostPolicy || err != nil {
		t.Errorf("post-policy: %v, %v", p, err)
	}
	if _, err := ParseBMPPolicy("both"); err == nil {
		t.Error("an unknown policy is accepted")
	}
}
