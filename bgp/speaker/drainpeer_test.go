package speaker

import (
	"slices"
	"testing"
	"time"

	"github.com/manxnet/manx/datastore/model"
)

// The drain of a peer alone, without any other change, changes what it was sent and what it has sent (RFC 8326), and
// its end changes that back.
func TestDrainOfOnePeer(t *testing.T) {
	l := newPolicyLab(t, 1, 70)
	l.announce()
	mustSet(t, l.s, l.d)
	for range 2 {
		for i := range l.d.Sessions { // two that announce, and two that listen
			for _, phase := range []model.DrainPhase{model.Draining, model.Drained, model.InService} {
				l.d.Sessions = slices.Clone(l.d.Sessions)
				before := l.difference()
				l.d.Sessions[i].Drain = phase
				if after := l.difference(); phase == model.Draining && before == "" && after == "" {
					t.Errorf("the drain of session %d would change nothing", i)
				}
				mustSet(t, l.s, l.d)
				diff := l.difference()
				for deadline := time.Now().Add(20 * time.Second); diff != "" && time.Now().Before(deadline); {
					time.Sleep(5 * time.Millisecond) // the peers receive it
					diff = l.difference()
				}
				if diff != "" {
					t.Fatalf("session %d is %q:\n%s", i, phase, diff)
				}
			}
		}
	}
}
