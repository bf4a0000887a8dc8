package speaker

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"

	"github.com/manxnet/manx/bgp"
)

// set makes the server do what d says. At no time a peer is sent what neither the old nor the new d allows: the policy
// comes before the routes and sessions that are new, and knows those that are gone until they are.
func (r *speakerRun) set(ctx context.Context, d bgp.Desired) error {
	wide := d
	wide.Originated = r.originsIn(d)
	wide.Sessions = r.sessionsIn(d)
	narrow := len(wide.Originated) == len(d.Originated) && len(wide.Sessions) == len(d.Sessions)
	again, err := r.setPolicy(ctx, wide)
	errs := []error{err,
		r.setOrigins(d.Originated, d.Drain), // before sessions: none must send its End-of-RIB before them
		r.decide(ctx, again),
		r.setSessions(ctx, d.Sessions),
	}
	if !narrow {
		d.Sessions = r.sessionsIn(d) // some may have stayed
		again, err := r.setPolicy(ctx, d)
		errs = append(errs, err, r.decide(ctx, again)) // interfaces may have become known meanwhile
	}
	r.desired = &d
	return errors.Join(append(errs, r.watchHops())...)
}

// originsIn are those of d, and those that are still announced.
func (r *speakerRun) originsIn(d bgp.Desired) []bgp.Origin {
	wanted := map[netip.Prefix]bool{}
	for _, o := range d.Originated {
		wanted[o.Prefix.Masked()] = !o.Withheld
	}
	list := slices.Clone(d.Originated)
	for _, p := range slices.SortedFunc(maps.Keys(r.origins), netip.Prefix.Compare) {
		if !wanted[p] {
			list = append(list, r.origins[p])
		}
	}
	return list
}

// sessionsIn are those of d, and those that should be gone and are still there.
func (r *speakerRun) sessionsIn(d bgp.Desired) []bgp.Session {
	wanted := map[netip.Addr]bool{}
	for _, s := range d.Sessions {
		wanted[s.Address.Unmap()] = true
	}
	list := slices.Clone(d.Sessions)
	for _, a := range slices.SortedFunc(maps.Keys(r.sessions), netip.Addr.Compare) {
		if !wanted[a] {
			list = append(list, r.sessions[a])
		}
	}
	return list
}
