package bgp

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/manxnet/manx/integration/lab"
	"github.com/manxnet/manx/integration/namespace"
)

// TestPathMTU has the router between two racks take less than the nodes' interfaces, and the nodes lose fragments, as
// behind many firewalls. A large transfer between pods hangs until the path is measured, and then works with the pods
// that there are. Within a rack nothing changes.
func TestPathMTU(t *testing.T) {
	v := newVXLAN(t, "m", "Always")
	v.reaches(t)
	near, far := v.pods[v.n2], v.pods[v.n3]
	eventually(t, func() error {
		return v.paths("n2 10.200.1.12 applied 1500 1500", "n3 10.200.2.13 applied 1500 1500")
	})
	must(t, v.transfer(far))
	for _, rack := range []string{"rack1", "rack2"} { // the router's way to the nodes, not that between two nodes
		must(t, namespace.Batch(v.ToRs[0].Namespace, "link set "+rack+" mtu 1400"))
	}
	for _, n := range v.Nodes {
		_, err := n.Run("nft", "table netdev fragments { chain in { type filter hook ingress device eth0 priority 0; "+
			"ip frag-off & 0x3fff != 0 counter drop; }; }")
		must(t, err)
	}
	if err := v.transfer(far); err == nil {
		t.Fatal("the router takes 1400 bytes, and a transfer with packets of 1500 arrives")
	}
	for _, n := range v.Nodes {
		_, err := n.Manxctl("retry") // or wait an hour
		must(t, err)
	}
	eventually(t, func() error {
		return v.paths("n2 10.200.1.12 applied 1500 1500", "n3 10.200.2.13 blocked 1500 1400")
	})
	eventually(t, func() error {
		out, err := v.n1.Run("ip", "route", "get", far.IP4().String())
		if err == nil && !strings.Contains(out, " mtu 1350") {
			err = fmt.Errorf("the way to the other rack is %s", out)
		}
		return err
	})
	eventually(t, func() error { return v.transfer(far) })
	must(t, v.transfer(near))
	if out, err := v.n1.Run("ip", "route", "get", near.IP4().String()); err != nil || strings.Contains(out, " mtu ") {
		t.Errorf("the way to the same rack is %s %v", out, err)
	}
	const notice = "path to node n3 (10.200.2.13): packets of up to 1400 bytes get there, and those of vxlan.calico " +
		"have up to 1500, with an MTU of 1450 and headers of 50. Routes to it have a smaller MTU meanwhile. Have the " +
		"network carry 1500 bytes, or set vxlanMTU to 1350"
	out, err := v.n1.Manxctl("status")
	must(t, err)
	if !strings.Contains(strings.Join(strings.Fields(out), " "), notice) {
		t.Errorf("manxctl status has no notice %q:\n%s", notice, out)
	}
}

// paths waits for rows of the table of the paths of n1: node, address, phase, desired and actual size.
func (v *vxlan) paths(want ...string) error {
	out, err := v.n1.Manxctl("get", "hostobjects", "path-mtu", "-o", "wide")
	if err != nil {
		return err
	}
	for _, w := range want {
		f := strings.Fields(w)
		found := false
		for line := range strings.Lines(out) {
			row := strings.Join(strings.Fields(line), " ")
			found = found || strings.HasPrefix(row, "path-mtu "+strings.Join(f[:3], " ")+" ") &&
				strings.Contains(row+" ", " "+f[3]+" "+f[4]+" ")
		}
		if !found {
			err = errors.Join(err, fmt.Errorf("no path %q", w))
		}
	}
	if err != nil {
		err = fmt.Errorf("%w in\n%s", err, out)
	}
	return err
}

// transfer sends half a megabyte from the pod of n1 to another one, by TCP over IPv4.
func (v *vxlan) transfer(to *lab.Pod) (err error) {
	const size, patience = 1 << 19, 5 * time.Second
	var l net.Listener
	inside := namespace.Inside(to.Namespace, func() { l, err = net.Listen("tcp", to.IP4().String()+":7000") })
	if err = errors.Join(inside, err); err != nil {
		return err
	}
	defer l.Close() //nolint:errcheck // of a test
	got := make(chan int64, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			got <- 0
			return
		}
		defer c.Close() //nolint:errcheck // of a test
		_ = c.SetDeadline(time.Now().Add(patience))
		n, _ := io.Copy(io.Discard, c)
		got <- n
	}()
	var c net.Conn
	inside = namespace.Inside(v.pods[v.n1].Namespace, func() {
		c, err = net.DialTimeout("tcp", l.Addr().String(), patience)
	})
	if err = errors.Join(inside, err); err != nil {
		return err
	}
	_ = c.SetDeadline(time.Now().Add(patience))
	_, err = c.Write(make([]byte, size))
	if err = errors.Join(err, c.Close()); err != nil {
		return err
	}
	if n := <-got; n != size {
		return fmt.Errorf("%d of %d bytes have arrived", n, size)
	}
	return nil
}
