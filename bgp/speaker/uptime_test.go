package speaker

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// birdClock is the largest difference between two outputs of one moment by BIRD: it stores the moment by the monotonic
// clock, and computes the time of day from two clocks that it reads one after the other, each time again.
const birdClock = 100 * time.Millisecond

// sameSessions reports whether two outputs of BIRD's "show protocols" have the same BGP sessions, up since the same
// moment.
func sameSessions(before, after string) bool {
	lines := bgpLines(before)
	return len(lines) > 0 && slices.EqualFunc(lines, bgpLines(after), func(a, b []string) bool {
		const since = 4 // after name, protocol, table and state
		if len(a) <= since || len(b) <= since || !sameMoment(a[since], b[since]) {
			return false
		}
		return slices.Equal(slices.Delete(a, since, since+1), slices.Delete(b, since, since+1))
	})
}

// bgpLines are the columns of the lines about BGP.
func bgpLines(out string) (lines [][]string) {
	for line := range strings.Lines(out) {
		if columns := strings.Fields(line); slices.Contains(columns, "BGP") {
			lines = append(lines, columns)
		}
	}
	return lines
}

// sameMoment compares two times of day that may lie on both sides of midnight. BIRD prints a date in place of the
// time when the moment is almost a day ago: that is compared as it is.
func sameMoment(a, b string) bool {
	at, errA := time.Parse("15:04:05.000", a)
	bt, errB := time.Parse("15:04:05.000", b)
	if errA != nil || errB != nil {
		return a == b
	}
	d := at.Sub(bt).Abs()
	return min(d, 24*time.Hour-d) <= birdClock
}

func TestSameSessions(t *testing.T) {
	t.Parallel()
	const head = "BIRD 2.0.12 ready.\nName       Proto      Table      State  Since         Info\n" +
		"device1    Device     ---        up     04:53:07.100\n"
	const up = "ibgp4      BGP        ---        up     04:53:07.490  Established\n"
	for _, c := range []struct {
		name, before, after string
		same                bool
	}{
		{"the same", up, up, true},
		{"rounded", up, strings.Replace(up, "07.490", "07.489", 1), true},
		{"around midnight", strings.Replace(up, "04:53:07.490", "23:59:59.999", 1),
			strings.Replace(up, "04:53:07.490", "00:00:00.000", 1), true},
		{"up again", up, strings.Replace(up, "07.490", "08.490", 1), false},
		{"up again a minute later", up, strings.Replace(up, "53:07.490", "54:07.490", 1), false},
		{"half a day later", up, strings.Replace(up, "04:53", "16:53", 1), false},
		{"lost", up, "ibgp4      BGP        ---        start  04:53:07.490  Active        Socket: Connection refused\n",
			false},
		{"another session", up, strings.Replace(up, "ibgp4", "ebgp4", 1), false},
		{"gone", up, "", false},
		{"no session", "", "", false},
		{"a date", strings.Replace(up, "04:53:07.490", "2026-11-22", 1),
			strings.Replace(up, "04:53:07.490", "2026-11-23", 1), false},
	} {
		if same := sameSessions(head+c.before, head+c.after); same != c.same {
			t.Errorf("%s: %v, want %v", c.name, same, c.same)
		}
	}
}
