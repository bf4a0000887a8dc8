package flowtrace

import (
	"fmt"
	"strings"

	"github.com/manxnet/manx/dataplane/kernel/nflog"
	"github.com/manxnet/manx/dataplane/kernel/nftables"
)

// Packet is one packet on its way through the chains of this host.
type Packet struct {
	First nflog.Packet // its headers when it was seen first
	Last  nflog.Packet // and when it was seen last
	// it became one of the flow on its way, or there were too many: its earlier steps are unknown
	Late       bool
	Connection string // "new", "established", "invalid" or "untracked"; empty if it did not come so far
	Chains     []Chain
	Out        string // the interface through which it leaves, if it came so far
	End        End
	Incomplete bool // steps were lost
}

// known reports whether the packet belongs to a connection that was let through before.
func (p *Packet) known() bool { return p.Connection == nftables.StateEstablished }

// translated reports whether the packet's destination was, such as that of a packet for a service.
func (p *Packet) translated() bool {
	return p.First.Destination != p.Last.Destination || p.First.DestinationPort != p.Last.DestinationPort
}

// Chain is a base chain that the packet came to, with its steps there and in the chains that it was sent to from there.
type Chain struct {
	Hook        string
	Family      string
	Table, Name string
	Priority    int32
	Steps       []nftables.TraceStep
	Verdict     string        // of the whole chain
	Headers     *nflog.Packet // when it came here; nil if that is not known
	done        bool
}

// manx reports whether it is one of Manx's table.
func (c *Chain) manx() bool { return c.Family == "inet" && c.Table == nftables.TableName }

// dropped reports whether the packet ended here.
func (c *Chain) dropped() bool { return c.Verdict == nftables.VerdictDrop }

// last is the step that decided.
func (c *Chain) last() *nftables.TraceStep { return &c.Steps[len(c.Steps)-1] }

// Decision is the deciding object of a base chain: one of its rules, one of a chain that it led to, or its policy. The
// zero value: none.
type Decision struct {
	Chain  string              // that has the rule or the policy
	Rule   nftables.TracedRule // zero if the policy decided
	Policy string              // "accept" or "drop" if the policy decided
}

// Decision returns the decision of the base chain. The policy of Manx's own, which is to accept, is no decision.
func (c *Chain) Decision() Decision {
	s := c.last()
	switch {
	case s.Kind == nftables.TraceRule:
		return Decision{Chain: s.Chain, Rule: s.Rule}
	case c.manx() && !c.dropped():
		return Decision{}
	}
	return Decision{Chain: c.Name, Policy: s.Verdict}
}

// By names the decider in a base chain: a policy's rule, or table, chain and rule.
func (c *Chain) By() string {
	d := c.Decision()
	switch {
	case d == Decision{}:
		return ""
	case d.Policy != "":
		return fmt.Sprintf("%s (policy %s)", c.place(d.Chain), d.Policy)
	case c.manx() && d.Rule.Comment != "":
		return d.Rule.Comment
	}
	rule := "a rule that is gone"
	if d.Rule.Number != 0 {
		rule = fmt.Sprintf("rule %d", d.Rule.Number)
	}
	text := fmt.Sprintf("%s, %s (handle %d)", c.place(d.Chain), rule, d.Rule.Handle)
	if d.Rule.Comment != "" {
		text += fmt.Sprintf(" %q", d.Rule.Comment)
	}
	return text
}

// place names a chain of the same table.
func (c *Chain) place(chain string) string {
	return fmt.Sprintf("table %s %s, chain %s", c.Family, c.Table, chain)
}

// EndKind is how a packet's way through the chains ended.
type EndKind uint8

const (
	// Vanished: it was not seen any more, and no chain dropped it.
	Vanished EndKind = iota
	// dropped by a chain.
	Dropped
	// Delivered to this host.
	Delivered
	// Sent to an interface.
	Sent
	// Taken by a program or by another part of the kernel.
	Taken
)

// End is the fate of a packet.
type End struct {
	Kind EndKind
	Text string
}

// passed reports whether it got through all chains.
func (e End) passed() bool { return e.Kind == Delivered || e.Kind == Sent }

// end determines the fate of a packet that is not seen any more. entered and left are its hooks.
func (p *Packet) end(entered, left []string) End {
	last := func(list []string) string {
		if len(list) == 0 {
			return ""
		}
		return list[len(list)-1]
	}
	if n := len(p.Chains); n > 0 {
		switch c := &p.Chains[n-1]; {
		case c.dropped():
			return End{Dropped, "dropped by " + c.By()}
		case c.done && (c.Verdict == nftables.VerdictQueue || c.Verdict == nftables.VerdictStolen):
			return End{Taken, "taken (" + c.Verdict + ") by " + c.By()}
		}
	}
	in, out := last(entered), last(left)
	switch {
	case out == "postrouting":
		return End{Sent, strings.TrimSpace("sent out " + p.Out)}
	case out == "input":
		return End{Delivered, "delivered to this host"}
	case in != out && in != "":
		return End{Vanished, "lost at " + in + " without a rule of nftables that drops it: look for iptables-legacy, " +
			"a full table of connections (dmesg), or a failed translation"}
	case out == "prerouting":
		return End{Vanished, "lost behind prerouting: the host does not route it; look at its routes (ip route get), " +
			"net.ipv4.ip_forward, rp_filter and the TTL"}
	case out != "":
		return End{Vanished, "lost behind " + out + ": the host does not send it on; look at its routes and at the MTU"}
	}
	return End{Vanished, "lost at once"}
}
