package kubernetes

import (
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
)

// A candidate that has waited for the expiry of a Lease must not take it from another one that was faster: the new
// version of the Lease may arrive in the moment in which the wait ends, and a write of that version would succeed.
func TestLeaseOfAnotherCandidateIsLeftAlone(t *testing.T) {
	now := time.Now()
	held := func(by string, seconds int32) *coordinationv1.Lease {
		return &coordinationv1.Lease{
			Spec: coordinationv1.LeaseSpec{HolderIdentity: &by, LeaseDurationSeconds: &seconds}}
	}
	for _, c := range []struct {
		rule string
		seen sighting
		want bool
	}{
		{"there is none", sighting{nil, now}, false},
		{"it was released", sighting{held("", 2), now}, false},
		{"the claim of this candidate got lost on its way back", sighting{held("me", 2), now}, false},
		{"it has expired", sighting{held("other", 2), now.Add(-2 * time.Second)}, false},
		{"it is about to expire", sighting{held("other", 2), now.Add(-2*time.Second + 1)}, true},
		{"it was claimed just now", sighting{held("other", 2), now}, true},
	} {
		if got := c.seen.heldByOther("me", now); got != c.want {
			t.Errorf("%s: held by another: %t, want %t", c.rule, got, c.want)
		}
	}
}
