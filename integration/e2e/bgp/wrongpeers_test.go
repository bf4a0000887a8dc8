package bgp

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/manxnet/manx/integration/e2e/world"
	"github.com/manxnet/manx/integration/lab"
	manxv1 "github.com/manxnet/manx/proto/manx/v1"
)

// testWrongPeers stores BGPPeers that cannot work. Each gets a reason, and no other session is affected.
func (c *cluster) testWrongPeers(t *testing.T) {
	n := c.N2
	tor := c.ToR2.Address(n)
	secret := filepath.Join(world.Secrets(n), "bgp")
	must(t, os.MkdirAll(secret, 0o700))
	must(t, os.WriteFile(filepath.Join(secret, "tor2"), []byte("not-what-the-router-has\n"), 0o600))

	others := map[string]*manxv1.Peer{}
	for _, p := range world.Peers(t, n) {
		if p.GetAddress() != tor.String() {
			others[p.GetAddress()] = p
		}
	}
	for _, x := range []struct {
		name, address, spec string
		command             string
		reason              []string // one of them
	}{
		{"wrong AS", tor.String(), "asNumber: 65009", "node status", []string{"AS is not 65009", "expects another AS"}},
		{"password that the peer does not have", tor.String(), "asNumber: 65000, password: {secretKeyRef: {name: " +
			"bgp, key: tor2}}", "node status", []string{"password"}},
		{"password that is not there", tor.String(), "asNumber: 65000, password: {secretKeyRef: {name: bgp, " +
			"key: absent}}", "status", []string{`key "absent" of secret "bgp" `}},
		{"nobody has the address", "10.200.1.250", "asNumber: 65000", "node status",
			[]string{"no answer from 10.200.1.250"}},
		{"nobody listens", c.Pods["n3-p1"].IP4().String(), "asNumber: 65000", "node status",
			[]string{"connection refused by " + c.Pods["n3-p1"].IP4().String()}},
	} {
		name := "wrong"
		if x.address == tor.String() {
			name = "tor2-n2"
		}
		must(t, n.Apply(fmt.Sprintf(`
apiVersion: projectcalico.org/v3
kind: BGPPeer
metadata: {name: %s}
spec: {node: n2, peerIP: %s, sourceAddress: None, %s}
`, name, x.address, x.spec)))
		var line string
		err := lab.Eventually(limit, func() error {
			out, err := n.Manxctl(strings.Fields(x.command)...)
			if err != nil {
				return err
			}
			for _, r := range x.reason {
				if line = world.LineWith(out, r); x.command == "status" && line != "" ||
					strings.Contains(line, x.address+" ") {
					return nil
				}
			}
			return fmt.Errorf("%s: manxctl %s should print one of %q:\n%s", x.name, x.command, x.reason, out)
		})
		if err != nil {
			t.Error(err)
		}
		t.Logf("%s: %s", x.name, strings.Join(strings.Fields(line), " "))
		if name == "wrong" {
			_, err := n.Manxctl("delete", "bgppeer", "wrong")
			must(t, err)
		}
	}
	must(t, n.Apply(world.TorPeer(n, "tor2-n2", tor, "None")))
	c.Settled(t)
	for _, p := range world.Peers(t, n) {
		if was := others[p.GetAddress()]; was != nil &&
			(p.GetFlaps() != was.GetFlaps() || p.GetEstablishedUnixMs() != was.GetEstablishedUnixMs()) {
			t.Errorf("the session with %s was disturbed: before %v, now %v", p.GetAddress(), was, p)
		}
	}
}
