package packets

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket/layers"

	"github.com/manxnet/manx/integration/e2e/world"
	"github.com/manxnet/manx/integration/lab"
)

// TestRulesWereAway: a pod that sends without a pause gets through while somebody deletes the table, and another table
// has the kernel track its flow. Once the rules are back the flow ends, and flows that policy allows go on.
func TestRulesWereAway(t *testing.T) {
	t.Parallel()
	p := newPair(t, map[string]string{"v": "n2", "b": "n2"})
	p.serve(t, "v")
	must(t, p.N1.Apply(noNewConnections))
	// An answer that is on its way while the connection ends begins none the other way round.
	must(t, p.N1.Apply(world.GlobalPolicy("no-new-answers", fmt.Sprintf("selector: all(), types: [Ingress], order: 1, "+
		"ingress: [{action: Deny, protocol: UDP, source: {ports: [%d]}}]", serverUDP))))
	// what kube-proxy does: connections are tracked without manxd's table, too
	_, err := p.N2.Run("nft", "add table inet other; "+
		"add chain inet other f { type filter hook forward priority 10; }; "+
		"add rule inet other f ct state new counter")
	must(t, err)
	p.comesToRefuse(t, "b", p.addresses("b"), 7009)

	stop := p.floods(t, "b", p.addresses("v"))
	defer stop()
	eventually(t, func() error {
		p.ports["v"].Forget()
		// The flow gets through for sure: the table is away for a moment.
		_, err := p.N2.Run("sh", "-c", "kill -STOP "+fmt.Sprint(p.N2.Manxd().PID())+
			"; nft delete table inet manx; sleep 0.1; kill -CONT "+fmt.Sprint(p.N2.Manxd().PID()))
		must(t, err)
		if len(p.ports["v"].Captured("flood")) == 0 {
			return fmt.Errorf("no datagram gets through without rules")
		}
		return nil
	})
	must(t, lab.Eventually(10*time.Second, func() error {
		for i, source := range p.addresses("b") {
			if err := p.drops(t, "b", source, p.addresses("v")[i], layers.IPProtocolUDP,
				&layers.UDP{SrcPort: clientUDP, DstPort: serverUDP}); err != nil {
				return err
			}
		}
		return nil
	}))
	if log := p.N2.Log(); !strings.Contains(log, "connections of workloads that policy denies") {
		t.Error("the log does not say that connections were ended")
	}
}
