package bgp

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/integration/e2e/world"
	"github.com/manxnet/manx/integration/lab"
	manxv1 "github.com/manxnet/manx/proto/manx/v1"
)

// TestPasswordsFailClosed removes a password by each file operation: no session runs without a password, and the
// established session stays up with the last good password.
func TestPasswordsFailClosed(t *testing.T) {
	l := world.NewLab(t, lab.Spec{Name: world.LabName("w"), PlainRouters: true, Nodes: []lab.NodeSpec{{Name: "n1"}}})
	n, tor := l.Nodes[0], l.ToRs[0]
	folder := world.Secrets(n)
	file := filepath.Join(folder, "bgp", "good")
	write := func() {
		must(t, os.MkdirAll(filepath.Dir(file), 0o700))
		must(t, os.WriteFile(file, []byte("correct\n"), 0o600))
	}
	write()
	must(t, n.StartManxd(append(n.EmbedDatastore(), "--no-default-pools", "--bgp-password-dir", folder)...))
	must(t, n.Ready(limit))
	at := func(last byte) netip.Addr {
		a := tor.Address(n).As4()
		a[3] = last
		return netip.AddrFrom4(a)
	}
	up, down := at(51), at(52)
	world.Trouble{Address: 51, Bird: `password "correct";`}.StartBIRD(t, n, tor, at)
	world.Trouble{Address: 52, Bird: " "}.StartBIRD(t, n, tor, at) // takes part without a password
	must(t, n.Apply(fmt.Sprintf(`
apiVersion: projectcalico.org/v3
kind: BGPPeer
metadata: {name: up}
spec: {node: n1, peerIP: %s, asNumber: 65000, password: {secretKeyRef: {name: bgp, key: good}}}
---
apiVersion: projectcalico.org/v3
kind: BGPPeer
metadata: {name: down}
spec: {node: n1, peerIP: %s, asNumber: 65000, password: {secretKeyRef: {name: bgp, key: absent}}}
`, up, down)))
	first := world.AwaitPeer(t, n, up, "up", func(p *manxv1.Peer) bool { return p.GetPhase() == "Established" })

	const missing = `key "absent" of secret "bgp" cannot be read`
	mustStayDown := func(t *testing.T) {
		t.Helper()
		p := world.AwaitPeer(t, n, down, "refused", func(p *manxv1.Peer) bool { return p.GetPhase() == "Refused" })
		if !strings.Contains(p.GetReason(), missing) || p.GetPassword() != "missing" || p.GetFlaps() != 0 {
			t.Errorf("session without a password: %v, want it never up, and %q", p, missing)
		}
	}
	mustStayUp := func(t *testing.T) {
		t.Helper()
		if p := world.Peer(t, n, up); p.GetPhase() != "Established" ||
			p.GetEstablishedUnixMs() != first.GetEstablishedUnixMs() {
			t.Errorf("session with the password that was read last: %v, want it up since %d", p,
				first.GetEstablishedUnixMs())
		}
	}
	mustStayDown(t)
	var descriptors uint64
	for _, x := range []struct {
		name, reason string
		spoil, mend  func(t *testing.T)
	}{
		{"the file is truncated", "is empty", func(t *testing.T) { must(t, os.Truncate(file, 0)) },
			func(*testing.T) { write() }},
		{"the folder is gone", "no such file", func(t *testing.T) { must(t, os.RemoveAll(folder)) },
			func(*testing.T) { write() }},
		{"no descriptor is free", "too many open files", func(t *testing.T) {
			descriptors = limitDescriptors(t, n.Manxd().PID(), lowestFree(t, n.Manxd().PID()))
			write() // makes manxd read the file again
		}, func(t *testing.T) { limitDescriptors(t, n.Manxd().PID(), descriptors) }},
	} {
		t.Run(x.name, func(t *testing.T) {
			before := strings.Count(n.Log(), x.reason)
			x.spoil(t)
			eventually(t, func() error { // only the log shows it
				if strings.Count(n.Log(), x.reason) == before {
					return fmt.Errorf("the log lacks %q", x.reason)
				}
				return nil
			})
			x.mend(t)
			mustStayUp(t)
			mustStayDown(t)
		})
	}
}

// lowestFree is the number that the next descriptor of a process gets.
func lowestFree(t *testing.T, pid int) uint64 {
	t.Helper()
	for fd := uint64(0); ; fd++ {
		if _, err := os.Lstat(fmt.Sprintf("/proc/%d/fd/%d", pid, fd)); err != nil {
			return fd
		}
	}
}

// limitDescriptors sets a bound below which new descriptors of a process must be, and returns the bound before. Open
// descriptors stay open.
func limitDescriptors(t *testing.T, pid int, most uint64) (before uint64) {
	t.Helper()
	var limit unix.Rlimit
	must(t, unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &limit))
	before, limit.Cur = limit.Cur, most
	must(t, unix.Prlimit(pid, unix.RLIMIT_NOFILE, &limit, nil))
	return before
}
