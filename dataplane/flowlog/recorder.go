package flowlog

import (
	"encoding/json"
	"net/netip"
	"strings"
	"time"
)

// Action is the action of a rule on packets.
type Action string

// A packet that a rule logged goes on to the rules that follow.
const (
	Dropped Action = "drop"
	Logged  Action = "log"
)

// Entry is packets of one flow that one rule dropped or logged. Its JSON is for users' programs.
type Entry struct {
	Time   time.Time `json:"time"` // of the last packet
	Action Action    `json:"action"`
	// Rule names the owner of the rule: "NetworkPolicy/shop/web ingress 2", "end of tier default".
	Rule                string     `json:"rule"`
	Source              netip.Addr `json:"source"`
	Destination         netip.Addr `json:"destination"`
	Protocol            string     `json:"protocol"`
	SourcePort          uint16     `json:"sourcePort,omitempty"` // of the last packet
	DestinationPort     uint16     `json:"destinationPort,omitempty"`
	ICMPType            *uint8     `json:"icmpType,omitempty"`
	ICMPCode            *uint8     `json:"icmpCode,omitempty"`
	In                  string     `json:"in,omitempty"` // interfaces
	Out                 string     `json:"out,omitempty"`
	SourceEndpoint      string     `json:"sourceEndpoint,omitempty"` // of this node: "shop/node--1-k8s-web--0-eth0"
	DestinationEndpoint string     `json:"destinationEndpoint,omitempty"`
	Packets             int        `json:"packets"` // since the last report
	// Suppressed is how many other flows were left out before this one, because there were too many.
	Suppressed int `json:"suppressed,omitempty"`
}

// String is the line of the log.
func (e Entry) String() string {
	text, _ := json.Marshal(e) // nothing in it can fail
	return string(text)
}

// flow is the identity of equal packets.
type flow struct {
	action              Action
	rule                string
	source, destination netip.Addr
	protocol            string
	port                uint16
	icmp                uint16
}

func (e *Entry) flow() flow {
	f := flow{action: e.Action, rule: e.Rule, source: e.Source, destination: e.Destination, protocol: e.Protocol,
		port: e.DestinationPort}
	if e.ICMPType != nil {
		f.icmp = uint16(*e.ICMPType)<<8 | uint16(*e.ICMPCode)
	}
	return f
}

const (
	// repeatAfter is how long repetitions of a flow are only counted.
	repeatAfter = 10 * time.Second
	// mostFlows bounds how many flows are remembered.
	mostFlows = 10000
)

// recorder decides which packets are recorded. The first packet of a flow is recorded at once, further packets after
// ten seconds, with their number. It returns at most its rate of entries a second, and counts the others. Not safe for
// concurrent use.
type recorder struct {
	rate       float64
	tokens     float64
	filled     time.Time
	flows      map[flow]*pending
	suppressed int
}

type pending struct {
	last  Entry // Packets: since the last report
	since time.Time
}

// newRecorder makes a recorder of at most rate entries a second.
func newRecorder(rate int) *recorder {
	return &recorder{rate: float64(rate), tokens: float64(rate), flows: map[flow]*pending{}}
}

// add enters one packet; it returns at most one entry to record.
func (r *recorder) add(e Entry) (entries []Entry) {
	e.Packets = 1
	k := e.flow()
	if p := r.flows[k]; p != nil {
		e.Packets += p.last.Packets
		p.last = e
		return nil
	}
	if len(r.flows) >= mostFlows || !r.take(e.Time) {
		r.suppressed++
		return nil
	}
	entries = append(entries, r.emit(e))
	e.Packets = 0
	r.flows[k] = &pending{last: e, since: e.Time}
	return entries
}

// tick returns the entries of flows that continue; call it about once a second.
func (r *recorder) tick(now time.Time) (entries []Entry) {
	for k, p := range r.flows {
		switch {
		case now.Sub(p.since) < repeatAfter:
		case p.last.Packets == 0:
			delete(r.flows, k)
		case r.take(now):
			entries = append(entries, r.emit(p.last))
			p.last.Packets, p.since = 0, now
		}
	}
	return entries
}

func (r *recorder) emit(e Entry) Entry {
	e.Suppressed, r.suppressed = r.suppressed, 0
	return e
}

// take requests permission to report one entry.
func (r *recorder) take(now time.Time) bool {
	if !r.filled.IsZero() {
		r.tokens = min(r.rate, r.tokens+r.rate*now.Sub(r.filled).Seconds())
	}
	r.filled = now
	if r.tokens < 1 {
		return false
	}
	r.tokens--
	return true
}

// Filter chooses entries; empty members choose all.
type Filter struct {
	Action   Action
	Endpoint string       // a part of the name of either endpoint
	Rule     string       // a part of the rule
	Net      netip.Prefix // holds the source or the destination
	Port     uint16       // of the destination
}

// matches reports whether an entry is chosen.
func (f Filter) matches(e *Entry) bool {
	switch {
	case f.Action != "" && f.Action != e.Action:
		return false
	case f.Endpoint != "" && !strings.Contains(e.SourceEndpoint, f.Endpoint) &&
		!strings.Contains(e.DestinationEndpoint, f.Endpoint):
		return false
	case f.Rule != "" && !strings.Contains(e.Rule, f.Rule):
		return false
	case f.Net.IsValid() && !f.Net.Contains(e.Source) && !f.Net.Contains(e.Destination):
		return false
	case f.Port != 0 && f.Port != e.DestinationPort:
		return false
	}
	return true
}
