package speaker

import (
	"context"
	"errors"
	"net/netip"
	"slices"

	"github.com/manxnet/manx/bgp"
)

// set configures the server as d requires. At no time a peer is sent a route that neither the old nor the new d allows:
// the policy comes before new routes and sessions, and includes removed ones until they are gone.
func (r *speakerRun) set(ctx context.Context, d bgp.Desired) error {
	wanted := addressesOf(d.Sessions)
	wide := d
	wide.Originated = r.originsIn(d)
	wide.Sessions = r.sessionsIn(d, wanted)
	narrow := len(wide.Originated) == len(d.Originated) && len(wide.Sessions) == len(d.Sessions)
	again, err := r.setPolicy(ctx, wide)
	errs := []error{err,
		r.setOrigins(d.Originated, d.Drain), // before sessions: none must send its End-of-RIB before them
		r.decide(ctx, again),
		r.setSessions(ctx, d.Sessions, wanted),
	}
	if !narrow {
		d.Sessions = r.sessionsIn(d, wanted) // some may have stayed
		again, err := r.setPolicy(ctx, d)
		errs = append(errs, err, r.decide(ctx, again)) // interfaces may have become known meanwhile
	}
	r.desired = &d
	return errors.Join(append(errs, r.watchHops())...)
}

// addressesOf is the set of the peers' addresses.
func addressesOf(sessions []bgp.Session) map[netip.Addr]bool {
	set := make(map[netip.Addr]bool, len(sessions))
	for i := range sessions {
		set[sessions[i].Address.Unmap()] = true
	}
	return set
}

// originsIn returns the origins of d, and those still announced.
func (r *speakerRun) originsIn(d bgp.Desired) []bgp.Origin {
	wanted := map[netip.Prefix]bool{}
	for _, o := range d.Originated {
		wanted[o.Prefix.Masked()] = !o.Withheld
	}
	var more []bgp.Origin
	for p, o := range r.origins {
		if !wanted[p] {
			more = append(more, o)
		}
	}
	slices.SortFunc(more, func(a, b bgp.Origin) int { return a.Prefix.Compare(b.Prefix) })
	return slices.Concat(d.Originated, more)
}

// sessionsIn returns the sessions of d, and obsolete ones that still exist.
func (r *speakerRun) sessionsIn(d bgp.Desired, wanted map[netip.Addr]bool) []bgp.Session {
	var more []bgp.Session
	for a := range r.sessions {
		if !wanted[a] {
			more = append(more, r.sessions[a])
		}
	}
	slices.SortFunc(more, func(a, b bgp.Session) int { return a.Address.Compare(b.Address) })
	return slices.Concat(d.Sessions, more)
}
