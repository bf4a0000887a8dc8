package policy

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/manxnet/manx/integration/e2e/world"
	"github.com/manxnet/manx/integration/lab"
	"github.com/manxnet/manx/integration/namespace"
)

// Ports of the listener: pods may send to the first only.
const (
	openPort   = 7001
	closedPort = 7002
)

// tooEarly is the message of a container that is not protected yet.
const tooEarly = "too early"

const firstPacketPolicy = `
apiVersion: projectcalico.org/v3
kind: GlobalNetworkPolicy
metadata: {name: first-packet}
spec:
  selector: all()
  types: [Egress]
  egress:
  - {action: Allow, protocol: UDP, destination: {ports: [7001]}}
  - {action: Deny, protocol: UDP, destination: {ports: [7002]}}
  - {action: Allow}
`

// listener answers datagrams on both ports and records the senders to the closed one.
type listener struct {
	mu    sync.Mutex
	wrong []netip.AddrPort
}

func listenIn(t *testing.T, ns string) *listener {
	t.Helper()
	l := &listener{}
	for _, port := range []int{openPort, closedPort} {
		var conn *net.UDPConn
		var err error
		must(t, namespace.Inside(ns, func() { conn, err = net.ListenUDP("udp", &net.UDPAddr{Port: port}) }))
		must(t, err)
		t.Cleanup(func() { conn.Close() })
		go func() {
			for buf := make([]byte, 64); ; {
				n, from, err := conn.ReadFromUDPAddrPort(buf)
				if err != nil {
					return
				}
				if port == closedPort || string(buf[:n]) == tooEarly {
					l.mu.Lock()
					l.wrong = append(l.wrong, from)
					l.mu.Unlock()
				}
				_, _ = conn.WriteToUDPAddrPort(buf[:n], from)
			}
		}()
	}
	return l
}

// sendOnce sends one datagram to the closed port and one to the open port, and waits for the answer to the second. As
// the order is kept, the first has then passed or been dropped, too.
func sendOnce(ns string, to netip.Addr) error {
	var conn *net.UDPConn
	var err error
	if inside := namespace.Inside(ns, func() { conn, err = net.ListenUDP("udp", &net.UDPAddr{}) }); inside != nil ||
		err != nil {
		return errors.Join(inside, err)
	}
	defer conn.Close()
	for _, port := range []uint16{closedPort, openPort} {
		if _, err := conn.WriteToUDPAddrPort([]byte("first"), netip.AddrPortFrom(to, port)); err != nil {
			return fmt.Errorf("port %d: %w", port, err)
		}
	}
	if err := conn.SetReadDeadline(time.Now().Add(limit)); err != nil {
		return err
	}
	_, from, err := conn.ReadFromUDPAddrPort(make([]byte, 64))
	if err == nil && from.Port() != openPort {
		err = fmt.Errorf("answer from port %d", from.Port())
	}
	return err
}

// TestFirstPacket has containers send one packet as soon as the CNI plugin reports that they are attached. It arrives
// if and only if policy allows it, at any time.
func TestFirstPacket(t *testing.T) {
	l := world.NewLab(t, lab.Spec{Name: world.LabName("w"), PlainRouters: true, Nodes: []lab.NodeSpec{{Name: "n1"},
		{Name: "n2"}}})
	datastore, n := l.Nodes[0], l.Nodes[1]
	must(t, datastore.StartManxd(append(datastore.EmbedDatastore(), "--no-default-pools")...))
	must(t, n.StartManxd(append(lab.UseDatastore(datastore), "--no-default-pools")...))
	must(t, errors.Join(datastore.Ready(limit), n.Ready(limit)))
	must(t, n.Apply(`
apiVersion: projectcalico.org/v3
kind: IPPool
metadata: {name: four}
spec: {cidr: 10.244.0.0/16}
---
apiVersion: projectcalico.org/v3
kind: IPPool
metadata: {name: six}
spec: {cidr: "fd00:244::/64"}
---`+firstPacketPolicy))
	server, err := n.AddPod("server", lab.DualStack)
	must(t, err)
	heard := listenIn(t, server.Namespace)
	checkWrong := func() {
		t.Helper()
		heard.mu.Lock()
		defer heard.mu.Unlock()
		if len(heard.wrong) > 0 {
			t.Fatalf("what policy denies has passed: %v", heard.wrong)
		}
	}

	// The daemon is paused until all containers are in the datastore: a plugin that does not wait has returned by then,
	// and its container's packets are lost. A paused daemon serves no plugin, so the plugins find the control socket in
	// a folder without their own socket.
	direct := filepath.Join(n.Dir, "direct", "manxd.sock")
	must(t, os.MkdirAll(filepath.Dir(direct), 0o755))
	must(t, os.Symlink(n.Socket(), direct))
	onItsOwn := func(conf map[string]any) {
		conf["manxd_socket"], conf["etcd_endpoints"] = direct, datastore.EtcdSocket()
	}
	const pods = 8
	var attached atomic.Int32
	must(t, n.Manxd().Signal(syscall.SIGSTOP))
	resumed := make(chan struct{})
	go func() {
		defer close(resumed)
		err := lab.Eventually(limit, func() error {
			out, err := datastore.Manxctl("get", "workloadendpoints", "-A", "--no-headers")
			if n := strings.Count(out, "\n"); err == nil && n != pods+1 {
				err = fmt.Errorf("%d endpoints, want %d", n, pods+1)
			}
			return err
		})
		if early := attached.Load(); early > 0 || err != nil {
			t.Errorf("%d of %d containers are attached while the daemon does nothing; %v", early, pods, err)
		}
		if err := n.Manxd().Signal(syscall.SIGCONT); err != nil {
			t.Error(err)
		}
	}()
	errs := make([]error, pods)
	world.Parallel(pods, func(i int) {
		p, err := n.AddPod(fmt.Sprintf("first%d", i), lab.DualStack, onItsOwn)
		attached.Add(1)
		if err == nil {
			err = errors.Join(sendOnce(p.Namespace, server.IP4()), sendOnce(p.Namespace, server.IP6()))
		}
		if err != nil {
			errs[i] = fmt.Errorf("pod %d: %w", i, err)
		}
	})
	<-resumed
	if err := errors.Join(errs...); err != nil {
		t.Errorf("what policy allows was lost right after ADD: %v", err)
	}
	checkWrong()
	metrics := func() string { out, err := n.Get("/metrics"); must(t, err); return out }
	if m := metrics(); !strings.Contains(m, fmt.Sprintf("\nmanx_cni_policy_waits_total %d\n", pods+1)) ||
		!strings.Contains(m, "\nmanx_cni_policy_wait_timeouts_total 0\n") {
		t.Errorf("waits are not counted:\n%s", lines(m, "manx_cni_"))
	}

	// The daemon has served the ADD of server alone.
	if m := metrics(); !strings.Contains(m, "\nmanx_cni_request_seconds_count{outcome=\"ok\",step=\"add\"} 1\n") {
		t.Errorf("ADDs are not counted:\n%s", lines(m, "manx_cni_"))
	}

	// Without a report ADD gives up in time with an error.
	_, err = n.AddPod("unheard", func(conf map[string]any) {
		conf["policy_setup_timeout_seconds"], conf["endpoint_status_dir"] = 1, filepath.Join(n.Dir, "nothing-here")
	})
	must(t, err)
	if m := metrics(); !strings.Contains(m, "\nmanx_cni_policy_wait_timeouts_total 1\n") {
		t.Errorf("the wait that ran out is not counted:\n%s", lines(m, "manx_cni_"))
	}

	// Without a daemon a container starts after the time-out, and none of its packets pass until a daemon runs again.
	must(t, n.Manxd().Stop(limit))
	files := func() (names []string) {
		entries, err := os.ReadDir(filepath.Join(n.Dir, "endpoint-status"))
		must(t, err)
		for _, e := range entries {
			names = append(names, e.Name())
		}
		return names
	}
	before := files()
	if len(before) != pods+2 {
		t.Errorf("%d status files, want one for each of %d pods: %q", len(before), pods+2, before)
	}
	dark, err := n.AddPod("dark", func(conf map[string]any) { conf["policy_setup_timeout_seconds"] = 1 })
	must(t, err)
	must(t, namespace.Inside(dark.Namespace, func() {
		var conn net.Conn
		if conn, err = net.Dial("udp", netip.AddrPortFrom(server.IP4(), openPort).String()); err == nil {
			_, err = conn.Write([]byte(tooEarly))
			conn.Close()
		}
	}))
	must(t, err)
	must(t, n.StartManxd())
	eventually(t, func() error {
		if now := files(); len(now) != len(before)+1 {
			return fmt.Errorf("%d status files, want one more than %d", len(now), len(before))
		}
		return nil
	})
	must(t, sendOnce(dark.Namespace, server.IP4()))
	must(t, server.Delete())
	eventually(t, func() error {
		if now := files(); len(now) != len(before) {
			return fmt.Errorf("%d status files after one pod is gone, want %d", len(now), len(before))
		}
		return nil
	})
	checkWrong()
}

// lines returns the lines of text that begin with prefix.
func lines(text, prefix string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, prefix) {
			b.WriteString(line)
		}
	}
	return b.String()
}
