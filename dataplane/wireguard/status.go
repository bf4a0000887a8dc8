package wireguard

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/manxnet/manx/dataplane/kernel/wireguard"
	"github.com/manxnet/manx/dataplane/reconcile"
	"github.com/manxnet/manx/datastore/model"
)

// rejectAfter is the age at which WireGuard uses no key of a session any more (REJECT_AFTER_TIME): whoever sends shakes
// hands again before.
const rejectAfter = 180 * time.Second

// PeerStatus says whether packets to the workloads of another node are encrypted.
type PeerStatus struct {
	Node   string
	Family model.Family
	// Encrypted is set if no packet goes in plain; they may still not arrive.
	Encrypted bool
	// Reason is a sentence for people.
	Reason string
	// Handshake is the time of the last one, zero for none.
	Handshake      time.Time
	Received, Sent uint64 // bytes
	Key            wireguard.Key
	broken         bool
}

// Peers returns the other nodes of the families that are encrypted, by their names. What the kernel counts is as old
// as the last comparison.
func (t *Target) Peers() (list []PeerStatus) {
	for _, s := range t.sides {
		if !s.active {
			continue
		}
		for name, why := range s.plan.Plain {
			st := PeerStatus{Node: name, Family: s.Family, Reason: "plain: " + why}
			if t.config.Required {
				st.Reason = "refused: " + why
			}
			list = append(list, st)
		}
		have := map[wireguard.Key]wireguard.Peer{}
		if s.have != nil {
			for _, p := range s.have.Peers {
				have[p.Key] = p
			}
		}
		for _, n := range s.plan.Peers {
			list = append(list, t.statusOf(s, n.Name, n.Key, have[n.Key]))
		}
	}
	slices.SortFunc(list, func(a, b PeerStatus) int {
		return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Family, b.Family))
	})
	return list
}

func (t *Target) statusOf(s *side, name string, k wireguard.Key, p wireguard.Peer) PeerStatus {
	st := PeerStatus{Node: name, Family: s.Family, Key: k, Handshake: p.Handshake, Received: p.Received, Sent: p.Sent,
		Encrypted: s.moved[name]}
	age := t.config.Now().Sub(p.Handshake).Truncate(time.Second)
	switch {
	case s.have == nil:
		st.Encrypted = t.config.Required // or not sent at all
		st.Reason = "plain: " + t.noDevice(s)
		if t.config.Required {
			st.Reason = "refused: " + t.noDevice(s)
		}
	case !st.Encrypted:
		st.Reason = fmt.Sprintf("plain: no handshake with %s yet", name)
	case p.Handshake.IsZero():
		st.broken = true
		st.Reason = fmt.Sprintf("encrypted, but no handshake yet: nothing arrives from %s at UDP port %d", p.Endpoint,
			s.Port)
	case s.stuck[name]:
		st.broken = true
		st.Reason = fmt.Sprintf("encrypted, but no handshake for %.0f s: nothing arrives from %s at UDP port %d",
			age.Seconds(), p.Endpoint, s.Port)
	default:
		st.Reason = fmt.Sprintf("encrypted, handshake %.0f s ago, %s", age.Seconds(), size(p.Sent+p.Received))
	}
	return st
}

// noDevice says why a family has no device.
func (t *Target) noDevice(s *side) string {
	if why := t.config.Missing()[s.Device]; why != nil {
		return why.Error()
	}
	return fmt.Sprintf("there is no device %s yet", s.Device)
}

// size writes a number of bytes for people.
func size(n uint64) string {
	v, unit := float64(n), 0
	units := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	for ; v >= 1024 && unit < len(units)-1; unit++ {
		v /= 1024
	}
	if unit == 0 {
		return fmt.Sprintf("%d B", n)
	}
	return fmt.Sprintf("%.1f %s", v, units[unit])
}

// Rows returns the other nodes, each with whether packets to its workloads are encrypted, and to itself, and then
// the objects in the kernel.
func (t *Target) Rows() []reconcile.Row {
	var list []reconcile.Row
	for _, p := range t.Peers() {
		row := reconcile.Row{Key: fmt.Sprintf("node %s IPv%d", p.Node, p.Family), Desired: "encrypted", Actual: "plain",
			Status: reconcile.Status{Phase: reconcile.Blocked, Reason: p.Reason}}
		if p.Encrypted {
			row.Actual, row.Phase = "encrypted", reconcile.Applied
		}
		if p.broken {
			row.Phase = reconcile.Failed
		}
		list = append(list, row)
	}
	return slices.Concat(list, t.hostRows(), t.Driver.Rows())
}

// mostNotices bounds the nodes and prefixes that have a notice of their own.
const mostNotices = 10

// Notices returns one for each object that cannot be made, for nodes that get packets in plain, for those that do not
// answer, and for prefixes that no other node may have.
func (t *Target) Notices() []reconcile.Notice {
	list, own := t.Driver.Notices(), t.hostNotices()
	for _, p := range t.Peers() {
		if !p.Encrypted || p.broken {
			own = append(own, reconcile.Notice{Subject: fmt.Sprintf("WireGuard to node %s (IPv%d)", p.Node, p.Family),
				Text: p.Reason})
		}
	}
	for _, s := range t.sides {
		if t.config.Required && s.needed && !s.On {
			own = append(own, reconcile.Notice{Subject: fmt.Sprintf("--wireguard-required (IPv%d)", s.Family),
				Text: fmt.Sprintf("packets of pods go in plain all the same: WireGuard is not switched on for IPv%d "+
					"(FelixConfiguration, %s)", s.Family, s.Enabled)})
		}
		if s.Threaded != nil && *s.Threaded && s.have != nil && s.have.Threads == wireguard.NoThreads {
			own = append(own, reconcile.Notice{Subject: "wireguardThreadingEnabled", Text: fmt.Sprintf("%s has no "+
				"threads: the kernel has no threaded NAPI (Linux 5.12), or "+
				"its /sys is not that of this host", s.Device)})
		}
		for p, why := range s.plan.Refused {
			own = append(own, reconcile.Notice{Subject: fmt.Sprintf("WireGuard for %s", p),
				Text: fmt.Sprintf("packets to it, of node %s by IPAM, are not encrypted: %s", s.places[p], why)})
		}
	}
	slices.SortFunc(own, func(a, b reconcile.Notice) int { return cmp.Compare(a.Subject, b.Subject) })
	if more := len(own) - mostNotices; more > 0 {
		own = append(own[:mostNotices], reconcile.Notice{Subject: "WireGuard",
			Text: fmt.Sprintf("%d further nodes or prefixes are not encrypted", more)})
	}
	since := map[string]time.Time{}
	for i := range own {
		at, known := t.since[own[i].Subject]
		if !known {
			at = t.config.Now()
		}
		own[i].Since, since[own[i].Subject] = at, at
	}
	t.since = since
	return append(list, own...)
}
