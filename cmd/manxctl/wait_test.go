package main_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestWait: wait ends when the condition holds, and says why it did not.
func TestWait(t *testing.T) {
	s, d := newPlayedDaemon(t)
	s.runWithDaemon("wait", "--for=ready").want(t, 0, "ready\n")
	s.runWithDaemon("wait", "--for=sessions", "--timeout=300ms").want(t, 4, "", "not sessions within 300ms: 192.0.2.1")
	s.runWithDaemon("status", "--all-sessions").want(t, 4, s.runWithDaemon("status").out)
	d.change(func() { d.status.Ready, d.status.Checks[0].Ok = false, false })
	s.runWithDaemon("wait", "--for", "ready", "--timeout", "1ms").want(t, 4, "", "not ready within 1ms: ")
	go func() {
		time.Sleep(300 * time.Millisecond) // wait has asked once or twice: nobody sees that from outside
		d.change(func() {
			d.status.Ready, d.status.Checks[0].Ok = true, true
			d.status.Peers = map[string]uint32{"Established": 3}
			for _, p := range d.peers {
				p.State = "Established"
			}
		})
	}()
	s.runWithDaemon("wait", "--for=sessions").want(t, 0, "sessions\n")
	s.runWithDaemon("status", "--all-sessions").want(t, 0, s.runWithDaemon("status").out)
	s.run("wait", "--for=ready", "--timeout=1ms", "--socket=/nowhere/manxd.sock").want(t, 4, "",
		"there is no such socket")
	s.run("wait", "--timeout=1ms").want(t, 4, "", "not ready within 1ms")
}

// TestEdit: the text of the editor is checked and stored; an error keeps it.
func TestEdit(t *testing.T) {
	t.Parallel()
	s, _ := newShell(t)
	s.mustPipe(peer, "create", "-f", "-")
	editor := func(script string) shell {
		file := filepath.Join(t.TempDir(), "editor")
		if err := os.WriteFile(file, []byte("#!/bin/sh\n"+script+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
		return shell{t, append([]string{"EDITOR=" + file, "TMPDIR=" + t.TempDir()}, s.env...)}
	}
	editor("true").run("edit", "bgppeer", "tor-1").want(t, 0, "bgppeer/tor-1 unchanged\n")
	e := editor("sed -i 's/64512/64513/' $1")
	e.run("edit", "bgppeer/tor-1").want(t, 0, "bgppeer/tor-1 edited\n")
	if left, _ := filepath.Glob(strings.TrimPrefix(e.env[1], "TMPDIR=") + "/*"); len(left) > 0 {
		t.Errorf("left are %q", left)
	}
	s.run("get", "bgppeer", "tor-1", "--no-headers").want(t, 0, "tor-1   192.0.2.1   (global)   64513\n")
	r := editor("sed -i 's/peerIP/peerIp/' $1").run("edit", "bgppeer", "tor-1")
	r.want(t, 1, "", "spec.peerIp: there is no such field here", "your text is in ")
	_, file, _ := strings.Cut(strings.TrimSuffix(strings.TrimSpace(r.err), ")"), "your text is in ")
	if text, err := os.ReadFile(file); err != nil || !strings.Contains(string(text), "peerIp: 192.0.2.1") {
		t.Errorf("%q, %v", text, err)
	}
	editor("false").run("edit", "bgppeer", "tor-1").want(t, 1, "", "the editor", "your text is in ")
	s.run("edit", "bgppeer").want(t, 2, "", "name the BGPPeer to edit")
	conflict := editor("ETCD_ENDPOINTS=" + strings.TrimPrefix(s.env[0], "ETCD_ENDPOINTS=") + " " + binary +
		" label bgppeer tor-1 a=b >/dev/null; sed -i 's/64513/64514/' $1")
	conflict.run("edit", "bgppeer", "tor-1").want(t, 1, "", "update conflict", "your text is in ")
}
