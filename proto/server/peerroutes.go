package server

import (
	"cmp"
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/manxnet/manx/bgp"
	"github.com/manxnet/manx/bgp/speaker"
	"github.com/manxnet/manx/dataplane/route"
	manxv1 "github.com/manxnet/manx/proto/manx/v1"
)

// The words for the requested routes and for the direction of a route.
const (
	routesAdvertised = "advertised"
	routesReceived   = "received"
	routesRejected   = "rejected"
	routesTable      = "table"

	wayIn  = "in"
	wayOut = "out"
)

const (
	routesPerResponse = 1000 // which bounds the size of a response: some 300 KB
	// Each list that is under way holds the routes of a peer, with 500,000 of them 150 MB.
	mostLists  = 4
	sendWithin = 30 * time.Second // for a caller to take one response
)

// ListPeerRoutes implements manxv1.ManxServer.
func (v *BGPView) ListPeerRoutes(
	r *manxv1.ListPeerRoutesRequest, stream grpc.ServerStreamingServer[manxv1.ListPeerRoutesResponse],
) error {
	speaker, err := v.speaker()
	if err != nil {
		return err
	}
	var peer netip.Addr
	if r.GetPeer() != "" || r.GetDirection() != routesRejected && r.GetDirection() != routesTable {
		if peer, err = findPeer(speaker, r.GetPeer()); err != nil {
			return err
		}
	}
	select {
	case v.lists <- struct{}{}:
	default:
		return status.Errorf(codes.ResourceExhausted, "%d lists of routes are under way; try again", mostLists)
	}
	defer func() { <-v.lists }()
	q := peerRoutes{bgp: speaker, local: v.workload}
	switch r.GetDirection() {
	case routesAdvertised:
		q.advertised(peer, true)
	case routesReceived:
		q.received(peer, func(p *manxv1.PeerRoute) bool { return true })
	case routesRejected:
		q.rejected(peer)
	case routesTable:
		q.table(peer, r.GetFamily())
	default:
		return status.Errorf(codes.InvalidArgument, "direction = %q: want %s, %s, %s or %s", r.GetDirection(),
			routesAdvertised, routesReceived, routesRejected, routesTable)
	}
	if q.err != nil {
		return status.Error(codes.Unavailable, q.err.Error())
	}
	for page := range chunks(q.rows, routesPerResponse) {
		if err := v.sendRoutes(stream, page); err != nil {
			return err
		}
	}
	return nil
}

// sendRoutes sends a response. It gives up on a caller that takes none for long: the end of the call ends Send, too.
func (v *BGPView) sendRoutes(stream grpc.ServerStreamingServer[manxv1.ListPeerRoutesResponse],
	page []*manxv1.PeerRoute) error {
	sent := make(chan error, 1)
	go func() { sent <- stream.Send(&manxv1.ListPeerRoutesResponse{Routes: page}) }()
	select {
	case err := <-sent:
		return err
	case <-time.After(v.sendWithin):
		return status.Errorf(codes.DeadlineExceeded, "the routes were not read within %s", v.sendWithin)
	}
}

// chunks cuts sequences into slices of n, of which the last may be shorter.
func chunks[T any](sequences []iter.Seq[T], n int) iter.Seq[[]T] {
	return func(yield func([]T) bool) {
		var chunk []T
		for _, all := range sequences {
			for x := range all {
				if chunk = append(chunk, x); len(chunk) == n {
					if !yield(chunk) {
						return
					}
					chunk = nil
				}
			}
		}
		if len(chunk) > 0 {
			yield(chunk)
		}
	}
}

// workload is the endpoint on this node that has an address, as "namespace/name"; empty if none has.
func (v *BGPView) workload(a netip.Addr) string {
	if r, ok := v.dataplane.routeTo(a); ok && r.Prefix.IsSingleIP() && r.Source == route.SourceWorkload {
		return r.Endpoint
	}
	return ""
}

// findPeer returns the one session of an address or of the name of a BGPPeer.
func findPeer(speaker BGP, name string) (netip.Addr, error) {
	addr, err := netip.ParseAddr(name)
	object := "BGPPeer/" + name
	var found, known []string
	for _, st := range speaker.Sessions() {
		a := st.Session.Address
		if err == nil && a.Unmap() == addr.Unmap() {
			return a, nil
		}
		if slices.Contains(st.Session.From, object) {
			found = append(found, a.String())
		}
		known = append(known, a.String())
	}
	switch {
	case err == nil:
		return addr, status.Errorf(codes.NotFound,
			"there is no session with %s: neither the mesh nor a BGPPeer configures one. %s", addr,
			sessionsKnown(known))
	case len(found) == 0:
		return addr, status.Errorf(codes.NotFound,
			"peer = %q: want the address of a session or the name of a BGPPeer that this node has a session for. %s",
			name, sessionsKnown(known))
	case len(found) > 1:
		return addr, status.Errorf(codes.InvalidArgument, "%s configures several sessions: name one of %s", object,
			strings.Join(found, ", "))
	}
	return netip.MustParseAddr(found[0]), nil
}

// sessionsKnown lists the sessions, or the first of many.
func sessionsKnown(addresses []string) string {
	const most = 20
	switch n := len(addresses); {
	case n == 0:
		return "This node has no sessions"
	case n > most:
		return fmt.Sprintf("The sessions are with %s and %d more", strings.Join(addresses[:most], ", "), n-most)
	}
	return "The sessions are with " + strings.Join(addresses, ", ")
}

// peerRoutes collects the routes of an answer, until something fails.
type peerRoutes struct {
	bgp   BGP
	local func(netip.Addr) string // the workload of this node with the address
	rows  []iter.Seq[*manxv1.PeerRoute]
	err   error
}

// advertised adds the routes that are sent to a peer, or those that are not.
func (q *peerRoutes) advertised(peer netip.Addr, accepted bool) {
	paths, err := q.bgp.AdvertisedTo(peer)
	if err != nil {
		q.err = cmp.Or(q.err, err)
		return
	}
	q.rows = append(q.rows, func(yield func(*manxv1.PeerRoute) bool) {
		for p := range paths {
			if p.Verdict.Accept == accepted && !yield(routeOf(p, peer, wayOut)) {
				return
			}
		}
	})
}

// received adds the routes that a peer has sent, with those that the kernel cannot have.
func (q *peerRoutes) received(peer netip.Addr, wanted func(*manxv1.PeerRoute) bool) {
	paths, err := q.bgp.ReceivedFrom(peer)
	if err != nil {
		q.err = cmp.Or(q.err, err)
		return
	}
	refused := map[netip.Prefix]string{}
	for _, x := range q.bgp.Rejected() {
		if x.Path.Peer.Unmap() == peer.Unmap() {
			refused[x.Prefix] = x.Reason
		}
	}
	q.rows = append(q.rows, func(yield func(*manxv1.PeerRoute) bool) {
		for p := range paths {
			row := routeOf(p, peer, wayIn)
			if why := cmp.Or(refused[p.Prefix], q.ofWorkload(p.Prefix)); row.Accepted && why != "" {
				row.Accepted, row.Rule = false, why
			}
			if wanted(row) && !yield(row) {
				return
			}
		}
	})
}

// ofWorkload returns why the kernel does not have a learned route to an address; empty: no workload has it.
func (q *peerRoutes) ofWorkload(p netip.Prefix) string {
	if !p.IsSingleIP() {
		return ""
	}
	if endpoint := q.local(p.Addr()); endpoint != "" {
		return "the address belongs to workload " + endpoint + " of this node, whose route precedes this one"
	}
	return ""
}

// rejected adds the routes not accepted from a peer and not sent to it, or those not accepted from any.
func (q *peerRoutes) rejected(peer netip.Addr) {
	no := func(p *manxv1.PeerRoute) bool { return !p.GetAccepted() }
	if peer.IsValid() {
		q.received(peer, no)
		q.advertised(peer, false)
		return
	}
	for _, st := range q.bgp.Sessions() {
		if st.Phase == speaker.PhaseEstablished {
			q.received(st.Session.Address, no)
		}
	}
	var all []*manxv1.PeerRoute
	for _, rows := range q.rows {
		all = slices.AppendSeq(all, rows)
	}
	slices.SortStableFunc(all, func(a, b *manxv1.PeerRoute) int {
		return netip.MustParsePrefix(a.GetPrefix()).Compare(netip.MustParsePrefix(b.GetPrefix()))
	})
	q.rows = []iter.Seq[*manxv1.PeerRoute]{slices.Values(all)}
}

// table adds the routes of a family, or of both: all, or those from a peer.
func (q *peerRoutes) table(peer netip.Addr, family string) {
	for i, name := range []string{familyIPv4, familyIPv6} {
		if family != "" && family != name {
			continue
		}
		paths, err := q.bgp.Table(i == 1)
		q.err = cmp.Or(q.err, err)
		q.rows = append(q.rows, func(yield func(*manxv1.PeerRoute) bool) {
			for _, p := range paths {
				if from := p.Peer.Unmap(); (!peer.IsValid() || from == peer.Unmap()) && !yield(tableRoute(p, from)) {
					return
				}
			}
		})
	}
}

func tableRoute(p *speaker.TablePath, from netip.Addr) *manxv1.PeerRoute {
	r := routeOf(speaker.EvaluatedPath{TablePath: p, Verdict: bgp.Verdict{Accept: true}}, from, "")
	r.Best = &p.Best
	if p.OriginatorID.IsValid() {
		id := p.OriginatorID.String()
		r.OriginatorId = &id
	}
	for _, id := range p.ClusterList {
		r.ClusterList = append(r.ClusterList, text(id))
	}
	return r
}

func routeOf(p speaker.EvaluatedPath, peer netip.Addr, way string) *manxv1.PeerRoute {
	r := &manxv1.PeerRoute{
		Prefix: text(p.Prefix), Peer: text(peer), Direction: way, Accepted: p.Verdict.Accept, Rule: p.Verdict.Rule,
		NextHop: text(p.NextHop),
		Origin:  p.Origin, AsPath: p.ASPath, LocalPref: p.LocalPref, Med: p.MED, SinceUnixMs: unixMs(p.Since),
	}
	communities, large := p.Communities, p.LargeCommunities
	if sent := p.Verdict.Route; way == wayOut && p.Verdict.Accept && sent.Prefix.IsValid() { // as filters have made it
		communities, large, r.AsPath = sent.Communities, sent.LargeCommunities, sent.ASPath
	}
	for _, c := range communities {
		r.Communities = append(r.Communities, fmt.Sprintf("%d:%d", c>>16, c&0xffff))
	}
	for _, c := range large {
		r.LargeCommunities = append(r.LargeCommunities, fmt.Sprintf("%d:%d:%d", c[0], c[1], c[2]))
	}
	for _, c := range p.Extended {
		r.ExtendedCommunities = append(r.ExtendedCommunities, c.String())
	}
	return r
}
