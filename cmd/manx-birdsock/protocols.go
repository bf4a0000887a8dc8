package main

import (
	"context"
	"fmt"
	"net/netip"
	"path"
	"strings"

	"github.com/manxnet/manx/bgp"
	manxv1 "github.com/manxnet/manx/proto/manx/v1"
)

// protocolName is calico/node's name for the protocol of a session. Tools derive the kind of the peer from it.
func protocolName(p *manxv1.Peer) string {
	kind := bgp.SessionType(p.GetType())
	prefix := map[bgp.SessionType]string{bgp.SessionMesh: "Mesh_", bgp.SessionGlobal: "Global_",
		bgp.SessionNode: "Node_"}[kind]
	if p.GetWanted().GetWorkload() != "" {
		prefix = "Local_Workload_"
	}
	name := prefix + strings.NewReplacer(".", "_", ":", "_").Replace(p.GetAddress())
	if kind != bgp.SessionMesh && p.GetPort() != 0 && p.GetPort() != bgp.DefaultPort {
		name += fmt.Sprintf("_port_%d", p.GetPort())
	}
	return name
}

// internal are protocols that exist in every BIRD of calico/node; Manx has no counterparts that could fail.
var internal = []struct{ name, proto string }{
	{"static1", "Static"}, {"kernel1", "Kernel"}, {"device1", "Device"}, {"direct1", "Direct"},
}

// peers returns the sessions of the family.
func (s *server) peers(ctx context.Context) (list []*manxv1.Peer, err error) {
	answer, err := s.manx.ListPeers(ctx, &manxv1.ListPeersRequest{})
	for _, p := range answer.GetPeers() {
		if a, err := netip.ParseAddr(p.GetAddress()); err == nil && a.Unmap().Is6() == s.ipv6 {
			list = append(list, p)
		}
	}
	return list, err
}

func (s *server) showProtocols(ctx context.Context, words []string, out *reply) error {
	all := len(words) > 0 && words[0] == "all"
	if all {
		words = words[1:]
	}
	if len(words) > 1 {
		out.end(9001, "syntax error")
		return nil
	}
	status, err := s.manx.GetStatus(ctx, &manxv1.GetStatusRequest{})
	if err != nil {
		return err
	}
	peers, err := s.peers(ctx)
	if err != nil {
		return err
	}
	wanted := func(name string) bool {
		if len(words) == 0 {
			return true
		}
		ok, err := path.Match(words[0], name)
		return ok && err == nil
	}
	found := false
	row := func(name, proto, state string, sinceMs int64, info string) {
		if !found {
			found = true
			out.line(2002, "name     proto    table    state  since       info")
		}
		out.line(1002, "%-8s %-8s %-8s %-6s %-10s  %s", name, proto, "master", state, s.since(sinceMs), info)
	}
	for _, p := range internal {
		if wanted(p.name) {
			row(p.name, p.proto, "up", status.GetStartedUnixMs(), "")
			if all {
				routes(out, 0, 0, 0)
				out.line(1006, "")
			}
		}
	}
	for _, p := range peers {
		name := protocolName(p)
		if !wanted(name) {
			continue
		}
		row(name, "BGP", upOrStart(p), p.GetSinceUnixMs(), info(p))
		if all {
			s.details(ctx, out, p)
		}
	}
	if !found && len(words) > 0 {
		out.end(9002, words[0]+" is not a protocol")
		return nil
	}
	out.end(0, "")
	return nil
}

// Phases of a session (manxv1.Peer).
const (
	established = "Established"
	refused     = "Refused"
)

func upOrStart(p *manxv1.Peer) string {
	switch p.GetPhase() {
	case established:
		return "up"
	case refused:
		return "down"
	}
	return "start"
}

// info is the state and, where the session is not up, why.
func info(p *manxv1.Peer) string {
	if p.GetPhase() == established {
		return fmt.Sprintf("%-14s", p.GetState())
	}
	return fmt.Sprintf("%-14s%s", p.GetState(), oneLine(p.GetReason()))
}

func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

// routes writes the route counts of a protocol.
func routes(out *reply, imported, exported, preferred uint64) {
	out.line(1006, "  Preference:     100")
	out.line(1006, "  Input filter:   ACCEPT")
	out.line(1006, "  Output filter:  ACCEPT")
	out.line(1006, "  Routes:         %d imported, %d exported, %d preferred", imported, exported, preferred)
}

// details writes the rest about a session. A list has the numbers of routes only while counting them is cheap.
func (s *server) details(ctx context.Context, out *reply, p *manxv1.Peer) {
	if full, err := s.manx.GetPeer(ctx, &manxv1.GetPeerRequest{Address: p.GetAddress()}); err == nil {
		p = full.GetPeer()
	}
	received, accepted := p.GetPrefixes().GetReceived(), p.GetPrefixes().GetAccepted()
	advertised := p.GetPrefixes().GetAdvertised()
	routes(out, accepted, advertised, accepted)
	out.line(1006, "  Route change stats:     received   rejected   filtered    ignored   accepted")
	out.line(1006, "    Import updates:     %10d %10d %10d %10d %10d", received, 0,
		received-min(accepted, received), 0, accepted)
	out.line(1006, "    Import withdraws:   %10d %10d        --- %10d %10d", 0, 0, 0, 0)
	out.line(1006, "    Export updates:     %10d %10d %10d        --- %10d", advertised, 0, 0, advertised)
	out.line(1006, "    Export withdraws:   %10d        ---        ---        --- %10d", 0, 0)
	field := func(name, format string, args ...any) {
		out.line(1006, "    %-18s%s", name+":", fmt.Sprintf(format, args...))
	}
	out.line(1006, "  BGP state:          %s", p.GetState())
	field("Neighbor address", "%s", p.GetAddress())
	field("Neighbor AS", "%d", p.GetPeerAs())
	if n := p.GetNegotiated(); p.GetPhase() == established {
		field("Neighbor ID", "%s", n.GetRouterId())
		field("Neighbor caps", "%s", strings.Join(n.GetCapabilities(), " "))
		kind := "external"
		if p.GetLocalAs() == p.GetPeerAs() {
			kind = "internal"
		}
		field("Session", "%s multihop AS4", kind)
		if n.GetLocalAddress() != "" {
			field("Source address", "%s", n.GetLocalAddress())
		}
		field("Hold timer", "%d/%d", n.GetHoldSeconds(), n.GetHoldSeconds())
		field("Keepalive timer", "%d/%d", n.GetKeepaliveSeconds(), n.GetKeepaliveSeconds())
	}
	if p.GetLastError() != "" {
		field("Last error", "%s", oneLine(p.GetLastError()))
	}
	out.line(1006, "")
}
