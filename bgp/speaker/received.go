package speaker

import (
	"net/netip"
	"sync"

	"github.com/manxnet/manx/bgp/gobgppolicy"
	"github.com/manxnet/manx/bgp/wire/message"
)

// received notes which routes in the Adj-RIB-In of one peer are refused. It follows the peer's UPDATEs as a
// wire.Receiver.
type received struct {
	mu       sync.Mutex // guards all but reading
	up       bool       // the session
	session  uint64     // changes when the session comes up or goes down
	rules    gobgppolicy.SessionRefusals
	outsider bool
	refused  map[routeKey]refusedRoute
	touched  map[routeKey]bool // changed while all routes are looked at; nil at other times

	reading sync.Mutex // one goroutine at a time reads all routes
}

// Begin and End forget the routes of the session before.
func (x *received) Begin() { x.begin(true) }

// End follows the end of a session.
func (x *received) End() { x.begin(false) }

func (x *received) begin(up bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.session++
	x.up, x.refused, x.touched = up, nil, nil
}

// Update takes the routes of an UPDATE.
func (x *received) Update(withdrawn, announced []message.Route, nextHop netip.Addr) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.up || len(x.rules.List) == 0 && len(x.refused) == 0 && x.touched == nil {
		return
	}
	for _, r := range withdrawn {
		x.note(r, netip.Addr{}, false)
	}
	for _, r := range announced {
		x.note(r, nextHop, true)
	}
}
