package main

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/manxnet/manx/datastore/table"
	manxv1 "github.com/manxnet/manx/proto/manx/v1"
)

func (c *cli) describeCommand() *cobra.Command {
	var namespace, output string
	cmd := &cobra.Command{
		Use:   "describe peer|bgppeer|endpoint|node|pool|POLICYKIND NAME...",
		Short: "Show a BGP session, a pod's endpoint, a node, a pool or a policy, with reasons",
		Long: `Show all about one thing, with reasons:

  peer ADDRESS|NAME, bgppeer NAME   the session as configured and negotiated, and the differences
  endpoint POD|NAMESPACE/POD        the pod's addresses and since when, its state at its node, the policies that apply;
                                    of a pod without an address the cause; also of an address: who has it
  node NAME                         its state and troubles, its blocks, the pools that it takes addresses from
  pool NAME                         its use, its selectors, its blocks and their owners
  KIND NAME                         of a policy: the endpoints at this node, the counters of each rule

Endpoints, nodes and pools come from the datastore, and the state of a node from its manxd: the local one knows its own
node alone. They have -o json and -o yaml.

Exit codes: 0 shown; 1 error, such as an object that does not exist; 2 usage; 4 for nodes of a cluster, if one does not
answer.`,
		Example: "  manxctl describe peer 10.0.1.1\n  manxctl describe bgppeer tor-1\n" +
			"  manxctl describe endpoint shop/web\n  manxctl describe endpoint 10.244.3.17\n" +
			"  manxctl describe node n2 -o json\n  manxctl describe pool default-ipv4-ippool\n" +
			"  manxctl describe networkpolicy web -n shop\n  manxctl describe gnp deny-all",
		Args:              describeUsage,
		ValidArgsFunction: c.completeDescribe,
		RunE: func(cmd *cobra.Command, args []string) error {
			args = kindAndName(args)
			kind := strings.ToLower(args[0])
			if k, ok := policyKind(kind); ok {
				return c.describePolicies(cmd.Context(), k, namespace, args[1:])
			}
			if k := describedKind(kind); k != "" {
				within := ""
				if cmd.Flags().Changed("namespace") {
					within = namespace
				}
				format, err := table.ParseFormat(output, describeFormats...)
				if err != nil {
					return usagef("%v", err)
				}
				d := &describer{out: c.out, format: format, states: statesHere{c}}
				return c.describeObjects(cmd.Context(), d, k, within, args[1:])
			}
			return c.daemon(cmd.Context(), func(ctx context.Context, m manxv1.ManxClient) error {
				for i, name := range args[1:] {
					if _, err := netip.ParseAddr(name); err == nil && !isPeers(kind) {
						return usagef("%s is no name of a BGPPeer: want \"describe peer %s\"", name, name)
					}
					found, err := findPeers(ctx, m, name)
					if err != nil {
						return err
					}
					if i > 0 {
						fmt.Fprintln(c.out) //nolint:errcheck // reported below
					}
					if _, err := fmt.Fprint(c.out, found.describe(time.Now())); err != nil {
						return err
					}
				}
				return nil
			})
		},
	}
	outputFlag(cmd, &output, describeFormats...)
	cmd.Flags().StringVarP(&namespace, "namespace", "n", "default", "namespace of policies that have one, and of an "+
		"endpoint")
	return cmd
}

// foundPeers are the sessions of an address or a BGPPeer.
type foundPeers struct {
	object    string // "BGPPeer/tor-1"; empty for an address
	peers     []*manxv1.Peer
	conflicts []*manxv1.PeerConflict
	notices   []string
}

func findPeers(ctx context.Context, m manxv1.ManxClient, name string) (foundPeers, error) {
	if _, err := netip.ParseAddr(name); err == nil {
		one, err := m.GetPeer(ctx, &manxv1.GetPeerRequest{Address: name})
		return foundPeers{peers: []*manxv1.Peer{one.GetPeer()}}, err
	}
	found := foundPeers{object: "BGPPeer/" + name}
	list, err := m.ListPeers(ctx, &manxv1.ListPeersRequest{RequestedBy: found.object})
	if err != nil {
		return found, err
	}
	found.conflicts, found.notices = list.GetConflicts(), list.GetNotices()
	for _, p := range list.GetPeers() {
		one, err := m.GetPeer(ctx, &manxv1.GetPeerRequest{Address: p.GetAddress()})
		if err != nil {
			return found, err
		}
		found.peers = append(found.peers, one.GetPeer())
	}
	if len(found.peers)+len(found.conflicts)+len(found.notices) == 0 {
		return found, fmt.Errorf("%s configures no session of this node: it does not exist, or its node, nodeSelector "+
			"or peerSelector does not match", found.object)
	}
	return found, nil
}

func (f foundPeers) describe(now time.Time) string {
	var parts []string
	if f.object != "" {
		parts = append(parts, f.describeObject())
	}
	for _, p := range f.peers {
		parts = append(parts, describePeer(p, now))
	}
	return strings.Join(parts, "\n")
}

func (f foundPeers) describeObject() string {
	var s sections
	s.heading(f.object)
	s.line("Sessions", "%s", orNone(strings.Join(addresses(f.peers), ", ")))
	for _, c := range f.conflicts {
		s.line("Conflict", "address %s: %s is kept, %s dropped: %s", c.GetAddress(), c.GetKept(),
			strings.Join(c.GetDropped(), ", "), c.GetReason())
	}
	for _, n := range f.notices {
		s.line("Notice", "%s", n)
	}
	return s.String()
}

func addresses(peers []*manxv1.Peer) (list []string) {
	for _, p := range peers {
		list = append(list, p.GetAddress())
	}
	return list
}

// sections writes paragraphs of named lines.
type sections struct{ strings.Builder }

func (s *sections) heading(text string) { fmt.Fprintln(s, table.OneLine(text)) }

// line writes a line unless its text is empty. The name may have that of an object.
func (s *sections) line(name, format string, args ...any) {
	if text := fmt.Sprintf(format, args...); text != "" {
		table.Fprintf(s, "  %-17s %s\n", name+":", text)
	}
}

// describePeer prints the state of the session, its configuration, the negotiated options, and the differences.
func describePeer(p *manxv1.Peer, now time.Time) string {
	var s sections
	s.heading("Session with " + peerName(p))
	s.line("State", "%s (%s) for %s", p.GetPhase(), p.GetState(), ago(p.GetSinceUnixMs(), now))
	s.line("Reason", "%s", p.GetReason())
	s.line("Warning", "%s", p.GetWarning())
	if p.GetDrain() != "" {
		s.line("Drain", "%s: its routes, and those that it is sent, are the last choice", p.GetDrain())
	}
	if p.GetNextAttemptUnixMs() != 0 {
		s.line("Next attempt", "within %s", until(p.GetNextAttemptUnixMs(), now))
	}
	if p.GetLastError() != "" {
		s.line("Last error", "%s ago, %s: %s", ago(p.GetLastErrorAtUnixMs(), now), dash(p.GetLastErrorBy()),
			p.GetLastError())
	}
	s.line("Flaps", "%d, %d of them with a graceful restart", p.GetFlaps(), p.GetRestarts())
	n, m := p.GetPrefixes(), p.GetMessages()
	s.line("Prefixes", "%d received, %d accepted, %d advertised", n.GetReceived(), n.GetAccepted(), n.GetAdvertised())
	s.line("Messages", "%d in (%d updates), %d out (%d updates)", m.GetIn(), m.GetUpdatesIn(), m.GetOut(),
		m.GetUpdatesOut())
	if b := p.GetBfd(); b != nil {
		s.line("BFD", "%s for %s, %d downs; sends every %d ms, wants %d ms, notices silence after %d ms%s",
			b.GetState(), ago(b.GetSinceUnixMs(), now), b.GetDowns(), b.GetTransmitMs(), b.GetReceiveMs(),
			b.GetDetectionMs(), when(b.GetMultihop(), " (multihop)"))
		s.line("", "%s", b.GetReason())
	}
	describeWanted(&s, p)
	describeNegotiated(&s, p)
	return s.String()
}

func describeWanted(s *sections, p *manxv1.Peer) {
	w := p.GetWanted()
	s.heading("Wanted by " + orNone(strings.Join(p.GetRequestedBy(), ", ")))
	s.line("Type", "%s%s", peerType(p.GetType()), when(p.GetPassive(), ", waits for the peer to connect"))
	s.line("AS numbers", "%d here, %d there", p.GetLocalAs(), p.GetPeerAs())
	s.line("Local address", "%s", dashOr(w.GetSource(), "any"))
	s.line("Password", "%s", p.GetPassword())
	s.line("Timers", "hold time %d s, keepalive %d s, graceful restart %d s", w.GetHoldSeconds(),
		w.GetKeepaliveSeconds(), w.GetRestartSeconds())
	if hops := w.GetTtlSecurity(); hops != 0 {
		s.line("TTL security", "%d hops (RFC 5082)", hops)
	} else {
		s.line("TTL", "%d", w.GetMultihopTtl())
	}
	s.line("Next hop", "%s", w.GetNextHop())
	if w.GetReflectorClient() {
		s.line("Route reflector", "the peer is a client, cluster ID %s", w.GetReflectorClusterId())
	}
	if w.GetAllowOwnAs() != 0 {
		s.line("Own AS in paths", "at most %d", w.GetAllowOwnAs())
	}
	if w.GetMaxPrefixes() != 0 {
		s.line("Most prefixes", "%d", w.GetMaxPrefixes())
	}
	s.line("Workload", "%s", w.GetWorkload())
	s.line("Filters", "%s", orNone(strings.Join(w.GetFilters(), ", ")))
	for _, c := range p.GetConflicts() {
		s.line("Conflict", "%s", c)
	}
	for _, n := range p.GetNotices() {
		s.line("Notice", "%s", n)
	}
}

func describeNegotiated(s *sections, p *manxv1.Peer) {
	n := p.GetNegotiated()
	if n == nil {
		s.heading("Nothing is negotiated: the session is not up")
		return
	}
	s.heading("Negotiated")
	s.line("Family", "%s; the peer offers %s", n.GetFamily(), orNone(strings.Join(n.GetFamilies(), ", ")))
	s.line("Timers", "hold time %d s, keepalive %d s", n.GetHoldSeconds(), n.GetKeepaliveSeconds())
	s.line("Router ID", "%s", n.GetRouterId())
	s.line("Local address", "%s", n.GetLocalAddress())
	s.line("Graceful restart", "%s", restartText(n))
	s.line("ADD-PATH", "receives: %s, sends: %s", yesNo(n.GetAddPathReceive()), yesNo(n.GetAddPathSend()))
	s.line("Capabilities", "%s", strings.Join(n.GetCapabilities(), ", "))
	if len(p.GetDifferences()) == 0 {
		s.heading("No difference from the configuration")
		return
	}
	s.heading("Differs from the configuration")
	for _, d := range p.GetDifferences() {
		fmt.Fprintf(s, "  - %s\n", table.OneLine(d))
	}
}

func restartText(n *manxv1.Negotiated) string {
	switch {
	case n.GetGracefulRestart():
	case slices.Contains(n.GetCapabilities(), "graceful restart"):
		return "announced by the peer, but not for " + n.GetFamily()
	default:
		return "not announced by the peer"
	}
	return fmt.Sprintf("the peer's restart time is %d s%s%s%s", n.GetRestartSeconds(),
		when(n.GetPeerRestarted(), "; it had restarted"), when(n.GetPeerForwarding(), "; it kept forwarding"),
		when(n.GetRestartNotification(), "; it announces RFC 8538, which this node does not use"))
}

func when(yes bool, text string) string {
	if yes {
		return text
	}
	return ""
}

func dashOr(s, instead string) string {
	if s == "" {
		return instead
	}
	return s
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}
