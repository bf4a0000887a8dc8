package server

import "slices"

// Check is one condition of readiness.
type Check struct {
	Name   string
	OK     bool
	Reason string // the missing condition, or the state reached
}

// The names of the server's own checks, which are also services of the gRPC health service.
const (
	checkDatastore = "datastore"
	checkBGP       = "bgp"
	checkDataplane = "dataplane"
	checkPolicy    = "policy"
)

const notStarted = "not started yet: manxd is starting"

// Ready reports whether this node does its part: it knows the datastore, has applied it to the kernel once, and BGP's
// restart is over. Other nodes and switches that are down do not make this node unready.
//
// Of several checks with one name the one added last counts.
func (s *Server) Ready() (bool, []Check) {
	var checks []Check
	for _, x := range s.all() {
		x, ok := x.(Checker)
		if !ok {
			continue
		}
		for _, c := range x.Checks() {
			if at := slices.IndexFunc(checks, func(o Check) bool { return o.Name == c.Name }); at >= 0 {
				checks[at] = c
				continue
			}
			checks = append(checks, c)
		}
	}
	return !slices.ContainsFunc(checks, func(c Check) bool { return !c.OK }), checks
}
