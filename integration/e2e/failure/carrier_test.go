package failure

import (
	"strings"
	"testing"
	"time"

	"github.com/manxnet/manx/integration/e2e/world"
)

// testCarrier takes the carrier from the interface of a node that leads to a router: the session ends long before its
// hold timer, with the reason, and is back with the carrier. The last session with a router stays, although its
// interface loses the carrier, too.
func (c *cluster) testCarrier(t *testing.T) {
	router := c.ToR2.Address(c.N2)
	setCarrier(t, c.ToR2, "p1", "down")
	cut := time.Now()
	for {
		p := world.Peer(t, c.N2, router)
		if p.GetState() != "Established" {
			if want := "interface eth1: the path to "; !strings.Contains(p.GetReason()+p.GetLastError(), want) ||
				!strings.Contains(p.GetReason()+p.GetLastError(), "it has lost its carrier") {
				t.Errorf("reason %q, last error %q", p.GetReason(), p.GetLastError())
			}
			break
		}
		if time.Since(cut) > 5*time.Second {
			t.Fatalf("the session is %s: %s", p.GetState(), p.GetReason())
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Logf("the session ended after %d ms", time.Since(cut).Milliseconds())
	setCarrier(t, c.ToR1, "p1", "down")
	time.Sleep(time.Second) // it must stay so
	if p := world.Peer(t, c.N2, c.ToR1.Address(c.N2)); p.GetState() != "Established" {
		t.Errorf("the last session with a router is %s: %s", p.GetState(), p.GetReason())
	}
	setCarrier(t, c.ToR1, "p1", "up")
	setCarrier(t, c.ToR2, "p1", "up")
	c.Settled(t)
}
