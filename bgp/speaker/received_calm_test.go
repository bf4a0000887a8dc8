package speaker

import "testing"

// All routes of a peer are counted after a burst of UPDATEs and not during it, unless its limit may have been exceeded.
// A burst without an end does not delay the count forever.
func TestRoutesAreCountedBehindABurst(t *testing.T) {
	for _, c := range []struct {
		name           string
		routes, bursts int // announced in each pause, in how many of them
		down           bool
		pauses         int
	}{
		{"no burst", 0, 0, false, 1},
		{"a burst", 10, 5, false, 6},
		{"a burst beyond the limit", 300, 100, false, 4},
		{"a burst without an end", 1, 1000, false, mostPauses},
		{"the session is down", 10, 5, true, 0},
	} {
		x := &received{up: !c.down, limit: limit{warn: 500, most: 1000}}
		pauses := 0
		x.awaitCalm(func() {
			if pauses++; pauses <= c.bursts {
				x.announced += c.routes
			}
		})
		if pauses != c.pauses {
			t.Errorf("%s: counted after %d pauses, want %d", c.name, pauses, c.pauses)
		}
	}
}
