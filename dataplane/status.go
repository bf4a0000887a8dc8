package dataplane

import (
	"net/netip"
	"time"

	"github.com/manxnet/manx/dataplane/link"
	"github.com/manxnet/manx/dataplane/reconcile"
	"github.com/manxnet/manx/dataplane/route"
	"github.com/manxnet/manx/dataplane/shape"
)

// Status tells how the agent is.
type Status struct {
	// Started is set once there was a state to act upon and the kernel has been read.
	Started bool
	// Synced is set while leftovers may be removed.
	Synced bool
	// FailedRoutes and FailedSettings are tried again.
	FailedRoutes, FailedSettings int
	// LastError is why the kernel could not be read or watched, empty if it can.
	LastError string
	Settings  []link.Status
	// FailedLimits are the limits of bandwidth that are tried again.
	FailedLimits []shape.Failure
	// RefusedEndpoints are the workloads of this host that get no route, no rules and no settings; Subject is the text
	// of their key.
	RefusedEndpoints []Notice
	// Notices tell what else a person should know.
	Notices []Notice
}

// Notice is something about this host that a person should know.
type Notice struct {
	Subject, Text string
	Since         time.Time
}

// Status returns how the agent is.
func (a *Agent) Status() Status {
	a.mu.Lock()
	defer a.mu.Unlock()
	listed, err := a.routes.Listed()
	s := Status{
		Started: listed && a.state != nil, Synced: a.synced.datastore && a.synced.bgp,
		FailedRoutes: a.routes.Failures(), FailedSettings: a.links.Failures(), Settings: a.links.Statuses(),
		FailedLimits: a.shapes.Failed(), RefusedEndpoints: a.refused.list(), Notices: a.files.notices(),
	}
	for _, err := range []error{err, a.watchErr} {
		if err != nil {
			s.LastError = err.Error()
		}
	}
	return s
}

// Routes returns the route table as users see it, sorted by prefix.
func (a *Agent) Routes() []route.Status {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.routes.Statuses()
}

// RouteCounts returns how many prefixes are in each phase.
func (a *Agent) RouteCounts() map[reconcile.Phase]int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.routes.Counts()
}

// Route returns the row of one prefix, false if nothing asks for it.
func (a *Agent) Route(p netip.Prefix) (route.Status, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.routes.Status(p)
}
