package speaker

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/manxnet/manx/bgp"
)

// TestOtherAddress: the router peers with one address of the node, whose session has another. Each side gets
// connections from, or to, the wrong address, and its own connections are closed without a message. The reason on each
// side is steady, and either of the named remedies brings the session up.
func TestOtherAddress(t *testing.T) {
	t.Parallel()
	n := newBirdNet(t, []string{"10.77.0.5/24", "10.77.1.5/24"}, []string{"10.77.0.1/24", "10.77.1.1/24"})
	global := func(id string, as uint32) bgp.Desired {
		return bgp.Desired{Global: bgp.Global{LocalAS: as, RouterID: ip(id), ListenPort: 179}}
	}
	node, router := startChild(t, n.manx), startChild(t, n.bird)
	here, there := global("10.77.1.5", 64512), global("10.77.0.1", 65000)
	here.Sessions = []bgp.Session{{Address: ip("10.77.0.1"), Source: ip("10.77.1.5"), LocalAS: 64512, PeerAS: 65000,
		From: []string{"BGPPeer/tor"}}}
	there.Sessions = []bgp.Session{{Address: ip("10.77.0.5"), Source: ip("10.77.0.1"), LocalAS: 65000, PeerAS: 64512,
		From: []string{"BGPPeer/rack"}}}
	node.set(here)
	router.set(there)

	const cause = "10.77.0.1 connects to 10.77.0.5, but this session uses 10.77.1.5"
	const view = "10.77.1.5, for which there is no session here, connects to us"
	node.await("the cause", func() bool { return strings.Contains(node.sessions[ip("10.77.0.1")].Reason, cause) })
	router.await("what the other side sees", func() bool {
		return strings.Contains(router.sessions[ip("10.77.0.5")].Reason, view)
	})
	// some attempts of each side
	for until := time.Now().Add(12 * time.Second); time.Now().Before(until); time.Sleep(50 * time.Millisecond) {
		for _, x := range []struct {
			c    *child
			peer netip.Addr
			want string
		}{{node, ip("10.77.0.1"), cause}, {router, ip("10.77.0.5"), view}} {
			x.c.mu.Lock()
			st := x.c.sessions[x.peer]
			x.c.mu.Unlock()
			if st.Phase != PhaseFailed || !strings.Contains(st.Reason, x.want) {
				t.Fatalf("a symptom replaced the cause: %s %q", st.Phase, st.Reason)
			}
		}
	}

	here.Sessions[0].Source = netip.Addr{} // sourceAddress: None
	node.set(here)
	node.await("the session from any address",
		func() bool { return node.sessions[ip("10.77.0.1")].Phase == PhaseEstablished })
	here.Sessions[0].Source = ip("10.77.0.5") // the address of the node is another
	node.set(here)
	node.await("the session from the right address", func() bool {
		st := node.sessions[ip("10.77.0.1")]
		return st.Phase == PhaseEstablished && st.Flaps > 0
	})
}
