package nftables

import (
	"encoding/binary"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/dataplane/kernel/netlink"

	"github.com/manxnet/manx/dataplane/kernel/nflog"
)

// traceReader turns the kernel's messages into steps.
type traceReader struct {
	own           string // the table that marks packets
	names         chainNames
	interfaceName func(uint32) string
	// headers of a packet come with the first message in each base chain, which may be one of no interest.
	pending map[uint32]*nflog.Packet
}

const mostPending = 1024 // of packets whose next step was lost

// traceKinds are the types of traces (NFTA_TRACE_TYPE).
var traceKinds = map[uint32]TraceKind{
	unix.NFT_TRACETYPE_RULE: TraceRule, unix.NFT_TRACETYPE_RETURN: TraceReturn, unix.NFT_TRACETYPE_POLICY: TracePolicy,
}

// step reads a message; false for one that is of no interest.
func (r *traceReader) step(m netlink.Message) (TraceStep, bool) {
	if m.Kind != nftKind(unix.NFT_MSG_TRACE) || len(m.Data) < 4 {
		return TraceStep{}, false
	}
	family, l := m.Data[0], attrList(m.Data[4:])
	s := TraceStep{
		Kind: traceKinds[l.number(unix.NFTA_TRACE_TYPE)], Packet: l.number(unix.NFTA_TRACE_ID),
		Family: familyNames[family],
		Table:  text(l[unix.NFTA_TRACE_TABLE]), Chain: text(l[unix.NFTA_TRACE_CHAIN]),
		Mark:    l.number(unix.NFTA_TRACE_MARK),
		Headers: r.headers(l),
	}
	if v := l[unix.NFTA_TRACE_RULE_HANDLE]; len(v) == 8 {
		s.Rule.Handle = binary.BigEndian.Uint64(v)
	}
	switch s.Kind {
	case TracePolicy:
		s.Verdict = verdictName(int32(l.number(unix.NFTA_TRACE_POLICY)))
	case TraceRule, TraceReturn:
		if s.Rule.Handle == 0 { // kernels differ in their type for the end of a chain
			s.Kind = TraceReturn
		}
		verdict := attrList(l[unix.NFTA_TRACE_VERDICT])
		s.Verdict, s.Target = verdictName(int32(verdict.number(unix.NFTA_VERDICT_CODE))),
			text(verdict[unix.NFTA_VERDICT_CHAIN])
	default:
		return s, false
	}
	if foreign := strings.HasPrefix(s.Table, traceTablePrefix) && s.Table != r.own; foreign {
		return s, false // another program traces, too
	}
	info := r.names.chain(family, s.Table, s.Chain, s.Rule.Handle)
	s.Base = info.base
	if rule, ok := info.rules[s.Rule.Handle]; ok {
		s.Rule = rule
	}
	if s.Table == r.own {
		return r.ownStep(s)
	}
	return s, true
}

// ownStep interprets a step in the table that marks packets.
func (r *traceReader) ownStep(s TraceStep) (TraceStep, bool) {
	kind, hook, _ := strings.Cut(s.Chain, "-")
	s.Hook = hook
	switch {
	case s.Kind == TraceRule && s.Rule.Comment == traceOfFlow:
		s.Kind, s.Fresh = TraceMarked, kind+"-" == traceEnter
	case s.Kind == TraceRule:
		s.Kind, s.State = TraceState, s.Rule.Comment
	case s.Kind == TracePolicy && kind+"-" == traceEnter:
		s.Kind = TraceEnter
	case s.Kind == TracePolicy && kind+"-" == traceLeave:
		s.Kind = TraceLeave
	default:
		if s.Headers != nil && len(r.pending) < mostPending {
			r.pending[s.Packet] = s.Headers
		}
		return s, false
	}
	if s.Headers == nil {
		s.Headers = r.pending[s.Packet]
	}
	delete(r.pending, s.Packet)
	return s, true
}

// headers returns the headers of a message, nil for none.
func (r *traceReader) headers(l attributes) *nflog.Packet {
	network, ok := l[unix.NFTA_TRACE_NETWORK_HEADER]
	if !ok {
		return nil
	}
	p := &nflog.Packet{}
	if !p.ParseNetwork(network) {
		return nil
	}
	p.ParseTransport(l[unix.NFTA_TRACE_TRANSPORT_HEADER])
	if i := l.number(unix.NFTA_TRACE_IIF); i != 0 {
		p.In = r.interfaceName(i)
	}
	if i := l.number(unix.NFTA_TRACE_OIF); i != 0 {
		p.Out = r.interfaceName(i)
	}
	return p
}

var verdictNames = map[int32]string{
	unix.NFT_CONTINUE: VerdictContinue, unix.NFT_RETURN: VerdictReturn, unix.NFT_JUMP: VerdictJump,
	unix.NFT_GOTO:  VerdictGoto,
	unix.NFT_BREAK: VerdictContinue,
}

// verdictName names a verdict of nf_tables or, in the lower byte, of netfilter: a drop has an error number above that,
// a queue the number of the queue.
func verdictName(code int32) string {
	if name, ok := verdictNames[code]; ok {
		return name
	}
	switch code & 0xff {
	case 0:
		return VerdictDrop
	case netfilterAccept:
		return VerdictAccept
	case 2:
		return VerdictStolen
	case 3:
		return VerdictQueue
	}
	return VerdictContinue
}

var familyNames = map[uint8]string{
	unix.NFPROTO_INET: "inet", unix.NFPROTO_IPV4: "ip", unix.NFPROTO_IPV6: "ip6", unix.NFPROTO_ARP: "arp",
	unix.NFPROTO_BRIDGE: "bridge",
	unix.NFPROTO_NETDEV: "netdev",
}
