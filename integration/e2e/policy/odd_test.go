package policy

import (
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/manxnet/manx/integration/lab"
	"github.com/manxnet/manx/integration/namespace"
)

// sendRaw sends packets of a protocol until one arrives as it was sent, or the time is over.
func sendRaw(
	t *testing.T, from, to string, address netip.Addr, protocol int, payload []byte, patience time.Duration,
) bool {
	t.Helper()
	network := fmt.Sprintf("ip4:%d", protocol)
	if address.Is6() {
		network = fmt.Sprintf("ip6:%d", protocol)
	}
	var sink net.PacketConn
	var source net.Conn
	var err error
	must(t, namespace.Inside(to, func() { sink, err = net.ListenPacket(network, address.String()) }))
	must(t, err)
	defer sink.Close()
	must(t, namespace.Inside(from, func() { source, err = net.Dial(network, address.String()) }))
	must(t, err)
	defer source.Close()
	for end := time.Now().Add(patience); ; {
		_, _ = source.Write(payload) // the other end's kernel may have complained
		_ = sink.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		buf := make([]byte, 256)
		for {
			n, _, err := sink.ReadFrom(buf)
			if err != nil {
				break
			}
			if string(buf[:n]) == string(payload) {
				return true
			}
		}
		if time.Now().After(end) {
			return false
		}
	}
}

// testOddPackets has a pod send packets that have the form of tunnels between nodes, and packets of no connection: both
// are dropped unless FelixConfiguration allows them, whatever the policies.
func (c *cluster) testOddPackets(t *testing.T) {
	a, far := c.Pods["a"], c.Pods["far"]
	echo(t, far.Namespace, 4789, 4790)
	want, patience := map[bool]string{true: answered, false: lost}, map[bool]time.Duration{true: 5 * time.Second}
	for _, x := range []struct {
		name, felix string
		// datagrams to ports 4789 and 4790; IP in IP; SCTP's data without a beginning
		vxlan, other, ipip, connection bool
	}{
		{"nothing is said", "", false, true, false, false},
		{"VXLAN", "allowVXLANPacketsFromWorkloads: true", true, true, false, false},
		{"VXLAN has another port", "vxlanPort: 4790", true, false, false, false},
		{"IPIP", "allowIPIPPacketsFromWorkloads: true", false, true, true, false},
		{"of no connection", "disableConntrackInvalidCheck: true", false, true, false, true},
		{"no longer", "disableConntrackInvalidCheck: false, allowIPIPPacketsFromWorkloads: false", false, true, false,
			false},
	} {
		t.Run(x.name, func(t *testing.T) {
			if x.felix != "" {
				c.temporary(t, documents(t, felix("default", x.felix))...)
			}
			var list []attempt
			for i, to := range both(far.IP4(), far.IP6()) {
				list = append(list, attempt{"to VXLAN's port", a.Namespace, "udp", at(to, 4789), want[x.vxlan]},
					attempt{"to another port", a.Namespace, "udp", at(to, 4790), want[x.other]})
				// chunk 0 is DATA
				data := lab.SCTPPacket{Source: 20001, Destination: uint16(20002 + i), Verification: 1}.Encode()
				if got := sendRaw(t, a.Namespace, far.Namespace, to, 132, data,
					patience[x.connection]); got != x.connection {
					t.Errorf("data of no connection arrives at %s: %v, want %v", to, got, x.connection)
				}
			}
			tryAll(t, list)
			if got := sendRaw(t, a.Namespace, far.Namespace, far.IP4(), 4, []byte("a packet in a packet"),
				patience[x.ipip]); got != x.ipip {
				t.Errorf("IPIP arrives: %v, want %v", got, x.ipip)
			}
		})
	}
}
