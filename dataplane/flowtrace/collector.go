package flowtrace

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/manxnet/manx/dataplane/kernel/nftables"
)

// How long a packet is waited for that is not seen any more: shortly if it got through, since a bridge or a device may
// still have chains for it; else in case that the host is slow.
const (
	afterEnd  = 50 * time.Millisecond
	afterStep = time.Second
)

// mostPackets bounds how many are followed at a time.
const mostPackets = 256

// Collector assembles steps into packets. The zero value has none.
type Collector struct {
	packets map[uint32]*pending
	done    []*Packet
	count   int // of all packets
}

// pending is a packet on its way.
type pending struct {
	Packet
	number        int
	entered, left []string
	seen          time.Time
}

// Add adds the next step.
func (c *Collector) Add(s nftables.TraceStep, now time.Time) {
	if s.Kind == nftables.TraceLost {
		for _, p := range c.packets {
			p.Incomplete = true
		}
		return
	}
	p := c.packets[s.Packet]
	if s.Kind == nftables.TraceMarked && (p == nil || s.Fresh && len(p.entered) > 0) {
		if p != nil { // its number is used again
			c.finish(s.Packet)
		}
		if len(c.packets) >= mostPackets {
			return
		}
		p = &pending{number: c.count}
		p.Late = !s.Fresh
		c.count++
		if c.packets == nil {
			c.packets = map[uint32]*pending{}
		}
		c.packets[s.Packet] = p
	}
	if p == nil {
		return // not of the flow
	}
	p.seen = now
	p.add(s)
	if n := len(p.Chains); n > 0 && p.Chains[n-1].dropped() {
		c.finish(s.Packet)
	}
}

func (p *pending) add(s nftables.TraceStep) {
	if h := s.Headers; h != nil {
		if !p.First.Source.IsValid() {
			p.First = *h
		}
		p.Last, p.Out = *h, cmp.Or(h.Out, p.Out)
	}
	switch s.Kind {
	case nftables.TraceMarked:
	case nftables.TraceState:
		p.Connection = s.State
	case nftables.TraceEnter:
		p.entered = append(p.entered, s.Hook)
	case nftables.TraceLeave:
		p.left = append(p.left, s.Hook)
	default:
		p.rule(s)
	}
}

// rule adds a step in a chain. A chain that has not decided yet goes on.
func (p *pending) rule(s nftables.TraceStep) {
	n := len(p.Chains)
	if n == 0 || p.Chains[n-1].done {
		c := Chain{Family: s.Family, Table: s.Table, Name: s.Chain, Headers: s.Headers}
		if s.Base != nil {
			c.Hook, c.Priority = s.Base.Hook, s.Base.Priority
		}
		p.Chains = append(p.Chains, c)
		n++
	}
	c := &p.Chains[n-1]
	c.Steps = append(c.Steps, s)
	switch s.Verdict {
	case nftables.VerdictAccept, nftables.VerdictDrop, nftables.VerdictQueue, nftables.VerdictStolen:
		c.Verdict, c.done = s.Verdict, true
	}
}

// Take returns the packets of which no more is to be expected.
func (c *Collector) Take(now time.Time) []*Packet {
	older := func(a, b uint32) int { return c.packets[a].number - c.packets[b].number }
	for _, id := range slices.SortedFunc(maps.Keys(c.packets), older) {
		p := c.packets[id]
		wait := afterStep
		if p.end(p.entered, p.left).passed() {
			wait = afterEnd
		}
		if now.Sub(p.seen) >= wait {
			c.finish(id)
		}
	}
	done := c.done
	c.done = nil
	return done
}

func (c *Collector) finish(id uint32) {
	p := c.packets[id]
	delete(c.packets, id)
	p.End = p.end(p.entered, p.left)
	c.done = append(c.done, &p.Packet)
}
