package gobgpapi

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"time"

	v3 "github.com/osrg/gobgp/v3/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"
	"github.com/osrg/gobgp/v4/pkg/server"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/manxnet/manx/bgp/apiguard"
	"github.com/manxnet/manx/bgp/speaker"
)

// Limits of table listings: paths that one keeps until they are sent (about 400 octets each), listings of one user and
// of all users but root, and how long a listing waits for its turn.
const (
	pagePaths      = 32 << 10
	listingsEach   = 4
	listingsOthers = 4
	listingWait    = 30 * time.Second
)

// tables reads GoBGP's tables in pages: the memory that it takes depends neither on their size nor on how fast callers
// read.
type tables struct {
	list  func(*server.BgpServer, apiutil.ListPathRequest, func(gobgp.NLRI, []*apiutil.Path)) error
	page  int // paths
	slots *apiguard.Slots
	pass  chan struct{} // holds a token while GoBGP copies a table: one copy at a time
}

func newTables(s *speaker.Speaker) *tables {
	return &tables{list: s.ListPath, page: pagePaths, slots: apiguard.NewSlots(listingsEach, listingsOthers),
		pass: make(chan struct{}, 1)}
}

// listing waits until the caller may list a table. Requests about single prefixes need not.
func (t *tables) listing(ctx context.Context, r *v3.ListPathRequest) (release func(), err error) {
	longer := func(p *v3.TableLookupPrefix) bool { return p.GetType() == v3.TableLookupPrefix_LONGER }
	if prefixes := r.GetPrefixes(); len(prefixes) > 0 && !slices.ContainsFunc(prefixes, longer) {
		return func() {}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, listingWait)
	defer cancel()
	release, err = t.slots.Wait(ctx, apiguard.CallerOf(ctx).UID)
	if err != nil {
		return nil, status.Errorf(codes.ResourceExhausted,
			"too many listings of whole tables: at most %d of one user, and %d of all users but root", listingsEach,
			listingsOthers)
	}
	return release, nil
}

// destination is a prefix and its paths.
type destination struct {
	prefix netip.Prefix
	paths  []*apiutil.Path
}

// each calls send for all destinations in the order of their prefixes.
func (t *tables) each(ctx context.Context, b *server.BgpServer, r apiutil.ListPathRequest,
	send func(destination) error) error {
	var after netip.Prefix
	for {
		p := &page{limit: t.page, after: after}
		if err := t.read(ctx, b, r, p); err != nil {
			return err
		}
		for i, d := range p.list {
			p.list[i] = destination{} // free the sent element
			if err := send(d); err != nil {
				return err
			}
		}
		if !p.more {
			return nil
		}
		after = p.last
	}
}

func (t *tables) read(ctx context.Context, b *server.BgpServer, r apiutil.ListPathRequest, p *page) error {
	select {
	case t.pass <- struct{}{}:
		defer func() { <-t.pass }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := t.list(b, r, p.add); errors.Is(err, speaker.ErrStopping) {
		return status.Error(codes.Unavailable, err.Error())
	} else if err != nil {
		return err
	}
	p.cut()
	return nil
}

// page collects the first destinations after a prefix, whose paths are about as many as limit.
type page struct {
	after netip.Prefix // invalid: from the first
	limit int

	list  []destination
	paths int
	more  bool         // some were left out
	last  netip.Prefix // of list, if more
}

func (p *page) add(nlri gobgp.NLRI, paths []*apiutil.Path) {
	n, ok := nlri.(*gobgp.IPAddrPrefix)
	if !ok { // the speaker has unicast routes only
		return
	}
	if p.after.IsValid() && n.Prefix.Compare(p.after) <= 0 || p.more && n.Prefix.Compare(p.last) > 0 {
		return
	}
	p.list = append(p.list, destination{n.Prefix, paths})
	if p.paths += len(paths); p.paths >= 2*p.limit {
		p.cut()
	}
}

// cut sorts the list and drops the elements beyond the limit.
func (p *page) cut() {
	slices.SortFunc(p.list, func(a, b destination) int { return a.prefix.Compare(b.prefix) })
	paths := 0
	for i, d := range p.list {
		if paths += len(d.paths); paths >= p.limit && i+1 < len(p.list) {
			clear(p.list[i+1:])
			p.list, p.paths, p.more, p.last = p.list[:i+1], paths, true, d.prefix
			return
		}
	}
	p.paths = paths
}
