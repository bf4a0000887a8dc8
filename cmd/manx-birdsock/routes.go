package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/manxnet/manx/bgp"
	manxv1 "github.com/manxnet/manx/proto/manx/v1"
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
				return q, fmt.Errorf("%w: manx-birdsock knows all, for, protocol, primary, count, stats, table and a "+
					"prefix",
					errSyntax)
			}
		}
	}
	return q, nil
}

func (s *server) showRoute(ctx context.Context, words []string, out *reply) error {
	q, err := parseRouteQuery(words)
	if err != nil {
		out.end(9001, err.Error())
		return nil
	}
	v, err := s.view(ctx)
	if err != nil {
		return err
	}
	if q.protocol != "" && !v.knows(q.protocol) {
		out.end(9002, q.protocol+" is not a protocol")
		return nil
	}
	paths, err := s.table(ctx)
	if err != nil {
		return err
	}
	total, networks := len(paths), countNetworks(paths)
	shown := q.choose(paths, v)
	if len(shown) == 0 && (q.host.IsValid() || q.exact.IsValid()) {
		out.end(8001, "Network not in table")
		return nil
	}
	if !q.count {
		var last netip.Prefix
		for _, p := range shown {
			v.path(out, p, p.prefix != last, q.all)
			last = p.prefix
		}
	}
	if q.count || q.stats {
		out.end(14, fmt.Sprintf("%d of %d routes for %d networks", len(shown), total, networks))
		return nil
	}
	out.end(0, "")
	return nil
}

// tablePath is one path of the table.
type tablePath struct {
	*manxv1.PeerRoute
	prefix netip.Prefix
}

// table returns the paths of the family, sorted by prefix.
func (s *server) table(ctx context.Context) ([]tablePath, error) {
	family := "IPv4"
	if s.ipv6 {
		family = "IPv6"
	}
	select { // a table may have a million routes, and manxd reads few at a time
	case s.reading <- struct{}{}:
		defer func() { <-s.reading }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	answer, err := manxv1.PeerRoutes(ctx, s.manx, &manxv1.ListPeerRoutesRequest{Direction: "table", Family: family})
	if err != nil {
		return nil, err
	}
	list := make([]tablePath, len(answer.GetRoutes()))
	for i, r := range answer.GetRoutes() {
		list[i].PeerRoute = r
		if list[i].prefix, err = netip.ParsePrefix(r.GetPrefix()); err != nil {
			return nil, err
		}
	}
	return list, nil
}

func countNetworks(paths []tablePath) (n int) {
	for i, p := range paths {
		if i == 0 || p.prefix != paths[i-1].prefix {
			n++
		}
	}
	return n
}

// choose returns the paths that match the query; paths are sorted by prefix.
func (q routeQuery) choose(paths []tablePath, v view) (list []tablePath) {
	network := q.exact
	if q.host.IsValid() {
		for _, p := range paths {
			if p.prefix.Contains(q.host) && (!network.IsValid() || p.prefix.Bits() > network.Bits()) {
				network = p.prefix
			}
		}
		if !network.IsValid() {
			return nil
		}
	}
	for _, p := range paths {
		if network.IsValid() && p.prefix != network.Masked() || q.protocol != "" && v.protocol(p) != q.protocol ||
			q.primary && !p.GetBest() {
			continue
		}
		list = append(list, p)
	}
	return list
}

// view has the data needed to show paths.
type view struct {
	*server
	protocols map[string]string // names, by the address of the peer
}

func (s *server) view(ctx context.Context) (view, error) {
	v := view{server: s, protocols: map[string]string{}}
	peers, err := s.peers(ctx)
	for _, p := range peers {
		v.protocols[p.GetAddress()] = protocolName(p)
	}
	return v, err
}

func (v view) knows(protocol string) bool {
	for _, p := range internal {
		if p.name == protocol {
			return true
		}
	}
	for _, name := range v.protocols {
		if name == protocol {
			return true
		}
	}
	return false
}

// protocol names where a path comes from; our own are static routes in BIRD.
func (v view) protocol(p tablePath) string {
	if p.GetPeer() == "" {
		return internal[0].name
	}
	return v.protocols[p.GetPeer()]
}

// path shows one path; the first of a network has its prefix.
func (v view) path(out *reply, p tablePath, first, all bool) {
	prefix := ""
	if first {
		prefix = p.GetPrefix()
	}
	own := p.GetPeer() == ""
	via, from, rank, kind := "blackhole", "", "(200)", "static"
	if !own {
		kind = "BGP"
		via = "via " + p.GetNextHop()
		if p.GetPeer() != p.GetNextHop() {
			from = " from " + p.GetPeer()
		}
		rank = fmt.Sprintf("(100/0) [%s%s]", lastAS(p.GetAsPath()), originLetter(p.GetOrigin()))
	}
	mark := " "
	if p.GetBest() {
		mark = " * "
	}
	out.line(1007, "%-18s %s [%s %s%s]%s%s", prefix, via, v.protocol(p), v.since(p.GetSinceUnixMs()), from, mark, rank)
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

func attributes(out *reply, p tablePath) {
	attr := func(name, format string, args ...any) {
		out.line(1012, "\tBGP.%s: %s", name, fmt.Sprintf(format, args...))
	}
	attr("origin", "%s", p.GetOrigin())
	attr("as_path", "%s", join(p.GetAsPath(), func(as uint32) string { return fmt.Sprint(as) }))
	attr("next_hop", "%s", p.GetNextHop())
	if p.Med != nil {
		attr("med", "%d", p.GetMed())
	}
	if p.LocalPref != nil {
		attr("local_pref", "%d", p.GetLocalPref())
	}
	if list := p.GetCommunities(); len(list) > 0 {
		attr("community", "%s", join(list, func(c string) string { return tuple(c, ",") }))
	}
	if p.GetOriginatorId() != "" {
		attr("originator_id", "%s", p.GetOriginatorId())
	}
	if list := p.GetClusterList(); len(list) > 0 {
		attr("cluster_list", "%s", strings.Join(list, " "))
	}
	if list := p.GetLargeCommunities(); len(list) > 0 {
		attr("large_community", "%s", join(list, func(c string) string { return tuple(c, ", ") }))
	}
	if list := p.GetExtendedCommunities(); len(list) > 0 {
		attr("ext_community", "%s", join(list, extended))
	}
}

// tuple converts "1:2" to "(1,2)".
func tuple(text, comma string) string { return "(" + strings.ReplaceAll(text, ":", comma) + ")" }

// extended converts an extended community: one with a name, or all octets as a number.
func extended(text string) string {
	n, err := strconv.ParseUint(text, 0, 64)
	if err != nil {
		return tuple(text, ", ")
	}
	var c bgp.ExtendedCommunity
	binary.BigEndian.PutUint64(c[:], n)
	global, local, ok := c.Administrator()
	if !ok {
		return fmt.Sprintf("(generic, %#x, %#x)", n>>32, n&0xffffffff)
	}
	return fmt.Sprintf("(unknown %#x, %s, %d)", n>>48, global, local)
}

func join[T any](list []T, format func(T) string) string {
	words := make([]string, len(list))
	for i, x := range list {
		words[i] = format(x)
	}
	return strings.Join(words, " ")
}
