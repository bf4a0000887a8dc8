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
	wide := d
	wide.Originated = r.originsIn(d)
	wide.Sessions = r.sessionsIn(d)
	r.gate.SetGrowth(wide.AttributeGrowth()) // before the policy that adds attributes
	narrow := len(wide.Originated) == len(d.Originated) && len(wide.Sessions) == len(d.Sessions)
	d.Sessions = wide.Sessions[:len(d.Sessions):len(d.Sessions)] // a copy, which stays after the call
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

// require records the difference between two lists of wanted sessions, for setSessions.
func (r *speakerRun) require(changed []bgp.Session, gone []netip.Addr) {
	for i := range changed {
		addr := changed[i].Address.Unmap()
		r.pending[addr] = true
		delete(r.obsolete, addr)
	}
	for _, addr := range gone {
		r.obsolete[addr] = true
		delete(r.pending, addr)
	}
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
func (r *speakerRun) sessionsIn(d bgp.Desired) []bgp.Session {
	var more []bgp.Session
	for a := range r.obsolete {
		if s, exists := r.sessions[a]; exists {
			more = append(more, s)
		}
	}
	slices.SortFunc(more, func(a, b bgp.Session) int { return a.Address.Compare(b.Address) })
	return slices.Concat(d.Sessions, more)
}
