package server

import (
	"cmp"
	"fmt"
)

// Check is one condition of readiness.
type Check struct {
	Name   string
	OK     bool
	Reason string // what is missing, or what is reached
}

// The names of the checks, which are also the services of the gRPC health service.
const (
	checkDatastore = "datastore"
	checkBGP       = "bgp"
	checkDataplane = "dataplane"
	checkPolicy    = "policy"
)

// Ready tells whether this node does its part: it knows the datastore, has brought the kernel to it once, and BGP's
// restart is over. Other nodes and switches that are down do not make this node unready.
func (s *Server) Ready() (bool, []Check) {
	now := s.now()
	checks := []Check{now.datastoreCheck(), now.bgpCheck(), now.dataplaneCheck()}
	if now.Policy != nil {
		checks = append(checks, now.policyCheck())
	}
	for _, c := range checks {
		if !c.OK {
			return false, checks
		}
	}
	return true, checks
}

func (s *Source) datastoreCheck() Check {
	c := Check{Name: checkDatastore}
	if s.Datastore == nil {
		c.Reason = cmp.Or(s.Waiting, "not connected yet: manxd is starting")
		return c
	}
	st := s.Datastore.Status()
	switch {
	case st.InSync:
		c.OK, c.Reason = true, "in sync"
		if st.Revision != 0 { // kinds with clocks of their own have none together
			c.Reason = fmt.Sprintf("in sync at revision %d", st.Revision)
		}
	case st.LastError != nil && !st.Complete:
		c.Reason = fmt.Sprintf("cannot be read: %v", st.LastError)
	case st.LastError != nil:
		c.Reason = fmt.Sprintf("connection lost, the last state is kept: %v", st.LastError)
	default:
		c.Reason = "being read for the first time"
	}
	return c
}

func (s *Source) bgpCheck() Check {
	c := Check{Name: checkBGP}
	if s.BGP == nil {
		c.Reason = "not started yet: manxd is starting"
		return c
	}
	ok, waiting := s.BGP.Ready()
	c.OK, c.Reason = ok, waiting
	if ok && waiting == "" {
		c.Reason = "restart is over, all routes are known"
	}
	return c
}

func (s *Source) dataplaneCheck() Check {
	c := Check{Name: checkDataplane}
	if s.Dataplane == nil {
		c.Reason = "not started yet: manxd is starting"
		return c
	}
	st := s.Dataplane.Status()
	switch {
	case st.LastError != "":
		c.Reason = "the kernel cannot be read or watched: " + st.LastError
	case !st.Started:
		c.Reason = "the kernel has not been brought to the state of the datastore yet"
	default:
		c.OK, c.Reason = true, "the kernel is kept as datastore and BGP want it"
		if n := st.FailedRoutes + st.FailedSettings; n > 0 {
			c.Reason += fmt.Sprintf(", except for what failed and is tried again (%d)", n)
		}
	}
	return c
}
