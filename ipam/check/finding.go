package check

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/manxnet/manx/datastore/model"
)

// Problem is the kind of a contradiction: the name of it in JSON and in metrics.
type Problem string

// The problems.
const (
	Leaked      Problem = "leaked-address"
	unassigned  Problem = "unassigned-address"
	foreign     Problem = "address-in-no-pool"
	twice       Problem = "address-twice"
	otherUser   Problem = "address-of-another-pod"
	podDiffers  Problem = "pod-differs-from-endpoint"
	idleHandles Problem = "idle-handle"
	missing     Problem = "missing-handle"
	miscounted  Problem = "miscounted-handle"
	claims      Problem = "block-and-affinity"
	lostNodes   Problem = "missing-node"
	kernel      Problem = "kernel"
)

// Problems are all problems, in the order of a report.
var Problems = []Problem{Leaked, unassigned, foreign, twice, otherUser, podDiffers, idleHandles, missing, miscounted,
	claims, lostNodes, kernel}

var titles = map[Problem]string{
	Leaked:      "addresses that are assigned, and that no object uses",
	unassigned:  "addresses that are used and not assigned, in an enabled pool",
	foreign:     "addresses that are used, in no enabled pool",
	twice:       "addresses in two places",
	otherUser:   "addresses that are assigned to one pod and used by another",
	podDiffers:  "pods with another address than their endpoint",
	idleHandles: "handles without addresses",
	missing:     "handles that blocks name, and that do not exist",
	miscounted:  "handles that count other addresses than blocks have",
	claims:      "blocks and affinities that contradict each other",
	lostNodes:   "blocks and endpoints of nodes that do not exist",
	kernel:      "routes of this node's kernel to addresses that nobody has",
}

// Title describes the problem in the plural.
func (p Problem) Title() string { return titles[p] }

// Finding is one contradiction.
type Finding struct {
	Problem  Problem `json:"problem"`
	Subject  string  `json:"subject"` // the address, block, handle or endpoint
	Text     string  `json:"text"`
	Evidence string  `json:"evidence,omitempty"`
	// Since is the creation of what contradicts, zero if the objects do not have it.
	Since time.Time `json:"since,omitzero"`

	fix fix
}

// fix is what a repair of a finding needs: one member is set, or none.
type fix struct {
	leak     *Allocation
	handle   string
	blocks   []netip.Prefix // those with addresses of the handle
	affinity model.Affinity
	vacate   bool         // the owner of the affinity is gone
	useless  netip.Prefix // a block with neither owner nor addresses
}

// Line describes the finding with its evidence and its age.
func (f Finding) Line(now time.Time) string {
	var notes []string
	if f.Evidence != "" {
		notes = append(notes, f.Evidence)
	}
	if f.Since.IsZero() {
		notes = append(notes, "age unknown")
	} else {
		notes = append(notes, "age "+age(now.Sub(f.Since)))
	}
	return f.Text + " (" + strings.Join(notes, "; ") + ")"
}

// age rounds a time down to its biggest unit.
func age(d time.Duration) string {
	switch {
	case d < 0:
		return "in the future"
	case d < time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%dm", d/time.Minute)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", d/time.Hour)
	}
	return fmt.Sprintf("%dd", d/(24*time.Hour))
}

// parseTime parses the timestamp of an assignment in the forms of Calico and of RFC 3339. It returns zero for others.
func parseTime(text string) time.Time {
	text, _, _ = strings.Cut(text, " m=") // a monotonic clock
	for _, layout := range []string{"2006-01-02 15:04:05.999999999 -0700 MST", time.RFC3339Nano} {
		if t, err := time.Parse(layout, text); err == nil {
			return t
		}
	}
	return time.Time{}
}

func createdAt(o *model.Object) time.Time {
	if o != nil {
		if m := o.Metadata(); m != nil {
			return m.GetCreationTimestamp().Time
		}
	}
	return time.Time{}
}
