package birdsock

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/manxnet/manx/bgp"
	"github.com/manxnet/manx/bgp/speaker"
)

// routeQuery holds the arguments of "show route".
type routeQuery struct {
	all, primary, count, stats bool

	exact    netip.Prefix // only this network
	host     netip.Addr   // only the network that traffic to it takes
	protocol string       // only routes of this protocol
}

var errSyntax = errors.New("syntax error")

func parseRouteQuery(words []string) (q routeQuery, err error) {
	next := func() (w string) {
		if len(words) > 0 {
			w, words = words[0], words[1:]
		}
		return w
	}
	for len(words) > 0 {
		switch w := next(); w {
		case "all":
			q.all = true
		case "primary":
			q.primary = true
		case "count":
			q.count = true
		case "stats":
			q.stats = true
		case "table":
			if t := next(); t != "master" {
				return q, fmt.Errorf("%w: there is one table, master", errSyntax)
			}
		case "protocol":
			if q.protocol = next(); q.protocol == "" {
				return q, errSyntax
			}
		case "for":
			text, _, _ := strings.Cut(next(), "/")
			if q.host, err = netip.ParseAddr(text); err != nil {
				return q, errSyntax
			}
		default:
			if q.exact, err = netip.ParsePrefix(w); err != nil {
				return q, fmt.Errorf("%w: manxd knows all, for, protocol, primary, count, stats, table and a prefix",
					errSyntax)
			}
		}
	}
	return q, nil
}

func (s *Server) showRoute(words []string, out *reply) {
	q, err := parseRouteQuery(words)
	if err != nil {
		out.end(9001, err.Error())
		return
	}
	v := s.view()
	if q.protocol != "" && !v.knows(q.protocol) {
		out.end(9002, q.protocol+" is not a protocol")
		return
	}
	paths, err := s.Source.Table(s.IPv6)
	if err != nil {
		out.end(8000, err.Error())
		return
	}
	total, networks := len(paths), countNetworks(paths)
	shown := q.choose(paths, v)
	if len(shown) == 0 && (q.host.IsValid() || q.exact.IsValid()) {
		out.end(8001, "Network not in table")
		return
	}
	if !q.count {
		var last netip.Prefix
		for _, p := range shown {
			v.path(out, p, p.Prefix != last, q.all)
			last = p.Prefix
		}
	}
	if q.count || q.stats {
		out.end(14, fmt.Sprintf("%d of %d routes for %d networks", len(shown), total, networks))
		return
	}
	out.end(0, "")
}

func countNetworks(paths []*speaker.TablePath) (n int) {
	for i, p := range paths {
		if i == 0 || p.Prefix != paths[i-1].Prefix {
			n++
		}
	}
	return n
}

// choose returns the paths that match the query; paths are sorted by prefix.
func (q routeQuery) choose(paths []*speaker.TablePath, v view) (list []*speaker.TablePath) {
	network := q.exact
	if q.host.IsValid() {
		for _, p := range paths {
			if p.Prefix.Contains(q.host) && (!network.IsValid() || p.Prefix.Bits() > network.Bits()) {
				network = p.Prefix
			}
		}
		if !network.IsValid() {
			return nil
		}
	}
	for _, p := range paths {
		if network.IsValid() && p.Prefix != network.Masked() || q.protocol != "" && v.protocol(p) != q.protocol ||
			q.primary && !p.Best {
			continue
		}
		list = append(list, p)
	}
	return list
}

// view has the data needed to show paths.
type view struct {
	*Server
	sessions map[netip.Addr]bgp.Session
}

func (s *Server) view() view {
	v := view{Server: s, sessions: map[netip.Addr]bgp.Session{}}
	for _, st := range s.familySessions() {
		v.sessions[st.Session.Address.Unmap()] = st.Session
	}
	return v
}

func (v view) knows(protocol string) bool {
	for _, p := range internal {
		if p.name == protocol {
			return true
		}
	}
	for _, s := range v.sessions {
		if protocolName(s) == protocol {
			return true
		}
	}
	return false
}

// protocol names where a path comes from; our own are static routes in BIRD.
func (v view) protocol(p *speaker.TablePath) string {
	if !p.Peer.IsValid() {
		return internal[0].name
	}
	return protocolName(v.sessions[p.Peer.Unmap()])
}

// path shows one path; the first of a network has its prefix.
func (v view) path(out *reply, p *speaker.TablePath, first, all bool) {
	prefix := ""
	if first {
		prefix = p.Prefix.String()
	}
	own := !p.Peer.IsValid()
	via, from, rank, kind := "blackhole", "", "(200)", "static"
	if !own {
		kind = "BGP"
		via = "via " + p.NextHop.String()
		if v.Source.InterfaceOf != nil {
			if name := v.Source.InterfaceOf(p.NextHop); name != "" {
				via += " on " + name
			}
		}
		if p.Peer != p.NextHop {
			from = " from " + p.Peer.String()
		}
		rank = fmt.Sprintf("(100/0) [%s%s]", lastAS(p.ASPath), originLetter(p.Origin))
	}
	mark := " "
	if p.Best {
		mark = " * "
	}
	out.line(1007, "%-18s %s [%s %s%s]%s%s", prefix, via, v.protocol(p), v.since(p.Since), from, mark, rank)
	if !all {
		return
	}
	out.line(1008, "\tType: %s unicast univ", kind)
	if !own {
		attributes(out, p)
	}
}

func originLetter(origin string) string {
	switch origin {
	case "IGP":
		return "i"
	case "EGP":
		return "e"
	}
	return "?"
}

func lastAS(path []uint32) string {
	if len(path) == 0 {
		return ""
	}
	return fmt.Sprintf("AS%d", path[len(path)-1])
}

func attributes(out *reply, p *speaker.TablePath) {
	attr := func(name, format string, args ...any) {
		out.line(1012, "\tBGP.%s: %s", name, fmt.Sprintf(format, args...))
	}
	attr("origin", "%s", p.Origin)
	attr("as_path", "%s", join(p.ASPath, "%d"))
	attr("next_hop", "%s", p.NextHop)
	if p.MED != nil {
		attr("med", "%d", *p.MED)
	}
	if p.LocalPref != nil {
		attr("local_pref", "%d", *p.LocalPref)
	}
	if len(p.Communities) > 0 {
		var words []string
		for _, c := range p.Communities {
			words = append(words, fmt.Sprintf("(%d,%d)", c>>16, c&0xffff))
		}
		attr("community", "%s", strings.Join(words, " "))
	}
	if p.OriginatorID.IsValid() {
		attr("originator_id", "%s", p.OriginatorID)
	}
	if len(p.ClusterList) > 0 {
		attr("cluster_list", "%s", join(p.ClusterList, "%s"))
	}
	if len(p.LargeCommunities) > 0 {
		var words []string
		for _, c := range p.LargeCommunities {
			words = append(words, fmt.Sprintf("(%d, %d, %d)", c[0], c[1], c[2]))
		}
		attr("large_community", "%s", strings.Join(words, " "))
	}
	if len(p.Extended) > 0 {
		var words []string
		for _, c := range p.Extended {
			words = append(words, extended(c))
		}
		attr("ext_community", "%s", strings.Join(words, " "))
	}
}

func extended(c bgp.ExtendedCommunity) string {
	global, local, ok := c.Administrator()
	if !ok {
		return fmt.Sprintf("(generic, %#x, %#x)", binary.BigEndian.Uint32(c[:]), binary.BigEndian.Uint32(c[4:]))
	}
	name := cmp.Or(c.Name(), fmt.Sprintf("unknown %#x", binary.BigEndian.Uint16(c[:])))
	return fmt.Sprintf("(%s, %s, %d)", name, global, local)
}

func join[T any](list []T, format string) string {
	words := make([]string, len(list))
	for i, x := range list {
		words[i] = fmt.Sprintf(format, x)
	}
	return strings.Join(words, " ")
}
