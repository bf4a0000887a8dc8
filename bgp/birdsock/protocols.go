package birdsock

import (
	"fmt"
	"path"
	"strings"
	"time"

	"github.com/manxnet/manx/bgp"
	"github.com/manxnet/manx/bgp/speaker"
)

// protocolName is calico/node's name for the protocol of a session. Tools derive the kind of the peer from it.
func protocolName(s bgp.Session) string {
	prefix := map[bgp.SessionType]string{bgp.SessionMesh: "Mesh_", bgp.SessionGlobal: "Global_",
		bgp.SessionNode: "Node_"}[s.Type]
	if s.Workload != "" {
		prefix = "Local_Workload_"
	}
	name := prefix + strings.NewReplacer(".", "_", ":", "_").Replace(s.Address.String())
	if s.Type != bgp.SessionMesh && s.Port != 0 && s.Port != bgp.DefaultPort {
		name += fmt.Sprintf("_port_%d", s.Port)
	}
	return name
}

// internal are protocols that exist in every BIRD of calico/node; Manx has no counterparts that could fail.
var internal = []struct{ name, proto string }{
	{"static1", "Static"}, {"kernel1", "Kernel"}, {"device1", "Device"}, {"direct1", "Direct"},
}

func (s *Server) familySessions() (list []speaker.SessionStatus) {
	for _, st := range s.Source.Sessions() {
		if st.Session.Address.Unmap().Is6() == s.IPv6 {
			list = append(list, st)
		}
	}
	return list
}

func (s *Server) showProtocols(words []string, out *reply) {
	all := len(words) > 0 && words[0] == "all"
	if all {
		words = words[1:]
	}
	if len(words) > 1 {
		out.end(9001, "syntax error")
		return
	}
	wanted := func(name string) bool {
		if len(words) == 0 {
			return true
		}
		ok, err := path.Match(words[0], name)
		return ok && err == nil
	}
	found := false
	row := func(name, proto, state string, since time.Time, info string) {
		if !found {
			found = true
			out.line(2002, "name     proto    table    state  since       info")
		}
		out.line(1002, "%-8s %-8s %-8s %-6s %-10s  %s", name, proto, "master", state, s.since(since), info)
	}
	for _, p := range internal {
		if wanted(p.name) {
			row(p.name, p.proto, "up", s.Source.Started, "")
			if all {
				routes(out, 0, 0, 0)
				out.line(1006, "")
			}
		}
	}
	for _, st := range s.familySessions() {
		name := protocolName(st.Session)
		if !wanted(name) {
			continue
		}
		row(name, "BGP", upOrStart(st), st.Since, info(st))
		if all {
			s.details(out, st)
		}
	}
	if !found && len(words) > 0 {
		out.end(9002, words[0]+" is not a protocol")
		return
	}
	out.end(0, "")
}

func upOrStart(st speaker.SessionStatus) string {
	switch st.Phase {
	case speaker.PhaseEstablished:
		return "up"
	case speaker.PhaseRefused:
		return "down"
	}
	return "start"
}

// info is the state and, where the session is not up, why.
func info(st speaker.SessionStatus) string {
	if st.Phase == speaker.PhaseEstablished {
		return fmt.Sprintf("%-14s", st.State)
	}
	return fmt.Sprintf("%-14s%s", st.State, oneLine(st.Reason))
}

func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

// routes writes the route counts of a protocol.
func routes(out *reply, imported, exported, preferred uint64) {
	out.line(1006, "  Preference:     100")
	out.line(1006, "  Input filter:   ACCEPT")
	out.line(1006, "  Output filter:  ACCEPT")
	out.line(1006, "  Routes:         %d imported, %d exported, %d preferred", imported, exported, preferred)
}

func (s *Server) details(out *reply, st speaker.SessionStatus) {
	if full, ok := s.Source.Session(st.Session.Address); ok {
		st.Counters = full.Counters
	}
	c := st.Counters
	routes(out, c.Accepted, c.Advertised, c.Accepted)
	out.line(1006, "  Route change stats:     received   rejected   filtered    ignored   accepted")
	out.line(1006, "    Import updates:     %10d %10d %10d %10d %10d", c.Received, 0,
		c.Received-min(c.Accepted, c.Received), 0, c.Accepted)
	out.line(1006, "    Import withdraws:   %10d %10d        --- %10d %10d", 0, 0, 0, 0)
	out.line(1006, "    Export updates:     %10d %10d %10d        --- %10d", c.Advertised, 0, 0, c.Advertised)
	out.line(1006, "    Export withdraws:   %10d        ---        ---        --- %10d", 0, 0)
	field := func(name, format string, args ...any) {
		out.line(1006, "    %-18s%s", name+":", fmt.Sprintf(format, args...))
	}
	out.line(1006, "  BGP state:          %s", st.State)
	field("Neighbor address", "%s", st.Session.Address)
	field("Neighbor AS", "%d", st.Session.PeerAS)
	if st.Phase == speaker.PhaseEstablished {
		field("Neighbor ID", "%s", st.PeerRouterID)
		field("Neighbor caps", "%s", strings.Join(st.Capabilities, " "))
		kind := "external"
		if st.Session.LocalAS == st.Session.PeerAS {
			kind = "internal"
		}
		field("Session", "%s multihop AS4", kind)
		if st.LocalAddress.IsValid() {
			field("Source address", "%s", st.LocalAddress)
		}
		field("Hold timer", "%.0f/%.0f", st.HoldTime.Seconds(), st.HoldTime.Seconds())
		field("Keepalive timer", "%.0f/%.0f", st.Keepalive.Seconds(), st.Keepalive.Seconds())
	}
	if st.LastError != "" {
		field("Last error", "%s", oneLine(st.LastError))
	}
	out.line(1006, "")
}
