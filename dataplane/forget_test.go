package dataplane

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/reconcile"
	"github.com/manxnet/manx/datastore/model"
)

// An address that moves from one workload to another gets a route to the new one after the kernel has removed the old
// one's connections, after any number of attempts, or after the last attempt.
func TestAMovedAddressWaitsForItsConnections(t *testing.T) {
	for name, c := range map[string]struct {
		failures, calls int
		warns           bool
	}{
		"at once":            {0, 1, false},
		"at the second try":  {1, 2, false},
		"never: it is given": {3, 3, true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			core, logs := observer.New(zap.WarnLevel)
			w.agent.routes.ForgetConnections(w.fake, w.agent.loop, zap.New(core))
			w.fake.PutLink(kernel.Link{Index: podLink, Name: "cali1", MTU: 1500, Up: true, Running: true})
			w.fake.PutLink(kernel.Link{Index: podLink + 1, Name: "cali2", MTU: 1500, Up: true, Running: true})
			node := nodeObject("node-1", "10.1.0.5/24", "")
			w.agent.set(model.NewSet(node, endpointObject("a", "node-1", "cali1", "10.244.1.7/32")))
			w.run()
			arrived := w.fake.Calls("ForgetConnections")
			for nth := 1; nth <= c.failures; nth++ {
				w.fake.Fail("ForgetConnections", arrived+nth, errors.New("no buffer space available"))
			}
			w.agent.set(model.NewSet(node, endpointObject("b", "node-1", "cali2", "10.244.1.7/32")))
			w.run()
			row, _ := w.agent.Route(netip.MustParsePrefix("10.244.1.7/32"))
			if row.Phase != reconcile.Applied || !strings.Contains(row.Desired, "dev cali2") {
				t.Errorf("the row is %+v", row)
			}
			if n := w.fake.Calls("ForgetConnections") - arrived; n != c.calls {
				t.Errorf("%d attempts, want %d", n, c.calls)
			}
			if warned := logs.FilterMessageSnippet("former addresses remain").Len() == 1; warned != c.warns {
				t.Errorf("logged: %v", logs.All())
			}
		})
	}
}
