package main_test

import (
	"bufio"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// TestGetWatch: -w prints the objects and then each change, in all formats, and only those that are selected.
func TestGetWatch(t *testing.T) {
	t.Parallel()
	s, _ := newShell(t)
	peer := func(name, as, rack string) string {
		return resource("BGPPeer", "name: "+name+", labels: {rack: "+rack+"}", "peerIP: 192.0.2.1, asNumber: "+as)
	}
	s.mustPipe(peer("tor-1", "65001", "a")+peer("b", "65001", "b"), "create", "-f", "-")
	lines := map[string]func() string{}
	for _, args := range []string{"-l rack=a", "-o name", "-o json tor-1", "-o yaml --no-headers"} {
		lines[args] = s.follow(append(strings.Fields("get bgppeers -w"), strings.Fields(args)...)...)
	}
	expect := func(args string, want ...string) {
		t.Helper()
		for _, w := range want {
			if line := lines[args](); !strings.HasPrefix(line, w) {
				t.Errorf("%s: %q, want %q", args, line, w)
			}
		}
	}
	expect("-l rack=a", "EVENT      NAME    PEERIP      NODE       ASN",
		"ADDED      tor-1   192.0.2.1   (global)   65001")
	expect("-o name", "bgppeer/b added", "bgppeer/tor-1 added")
	expect("-o json tor-1", `{"type":"ADDED","object":{"kind":"BGPPeer","apiVersion":"projectcalico.org/v3",`)
	expect("-o yaml --no-headers", "---", "object:", "  apiVersion:")
	s.mustPipe(peer("tor-1", "65002", "a"), "apply", "-f", "-")
	s.mustPipe(peer("tor-1", "65002", "b")+peer("much-longer", "1", "a"), "apply", "-f", "-")
	s.must("delete", "bgppeer", "tor-1")
	expect("-l rack=a", "MODIFIED   tor-1   192.0.2.1   (global)   65002",
		"DELETED    tor-1   192.0.2.1   (global)   65002",
		"ADDED      much-longer   192.0.2.1   (global)   1")
	expect("-o name", "bgppeer/tor-1 modified", "bgppeer/tor-1 modified", "bgppeer/much-longer added",
		"bgppeer/tor-1 deleted")
	expect("-o json tor-1", `{"type":"MODIFIED"`, `{"type":"MODIFIED"`, `{"type":"DELETED"`)

	s.run("get", "-w", "-f", "x").want(t, 2, "", "-w is for a kind")
	s.run("get", "nodes", "-w", "-o", "jsonpath={.x}").want(t, 2, "", "-w shows whole objects")
	s.run("get", "node/a", "tier/b", "-w").want(t, 2, "", "-w follows one kind")
}

// follow runs a command until the test ends. It returns a function that returns its next line.
func (s shell) follow(args ...string) func() string {
	s.t.Helper()
	cmd := exec.Command(binary, args...)
	cmd.Env = s.env
	out, err := cmd.StdoutPipe()
	if err != nil {
		s.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		cmd.Process.Kill() //nolint:errcheck // it may have ended
		cmd.Wait()         //nolint:errcheck // killed
	})
	lines := make(chan string, 100)
	go func() {
		defer close(lines)
		for scan := bufio.NewScanner(out); scan.Scan(); {
			lines <- scan.Text()
		}
	}()
	return func() string {
		select {
		case l := <-lines:
			return l
		case <-time.After(20 * time.Second):
			return "(no line)"
		}
	}
}
