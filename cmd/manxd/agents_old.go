package main

import (
	"slices"

	"github.com/manxnet/manx/cmd/manxd/follow"
	"github.com/manxnet/manx/dataplane"
	"github.com/manxnet/manx/dataplane/route"
)

// agents are those of the dataplane as the follower knows them.
func agents(d *dataplanePart, p *policyPart) []follow.Agent {
	list := []follow.Agent{&routesAgent{Agent: d.Agent}}
	if p != nil {
		list = append(list, policyAgent{p.agent})
	}
	return list
}

type routesAgent struct {
	*dataplane.Agent
	told *dataplane.State
}

func (a *routesAgent) SetState(s dataplane.State) {
	switch {
	case s.All:
		a.Agent.SetState(s.Reader)
	case len(s.Changed) > 0:
		a.Agent.SetState(s.Reader, s.Changed...)
	}
	if a.told == nil || !slices.Equal(a.told.Statics, s.Statics) {
		a.SetStatic(s.Statics)
	}
	if a.told == nil || !slices.Equal(a.told.Peering, s.Peering) {
		a.SetPeering(s.Peering)
	}
	if a.told == nil || a.told.DatastoreSynced != s.DatastoreSynced || a.told.BGPSynced != s.BGPSynced {
		a.SetSynced(s.DatastoreSynced, s.BGPSynced)
	}
	s.Reader, s.Changed = nil, nil
	a.told = &s
}

func (a *routesAgent) Learn(list []route.Learned) { a.UpdateRoutes(list) }

type policyAgent struct{ *dataplane.PolicyAgent }

func (a policyAgent) SetState(s dataplane.State) {
	if s.All || len(s.Changed) > 0 {
		a.PolicyAgent.SetState(s.Reader, s.Changed...)
		return
	}
	a.Unchanged(s.Reader)
}

func (policyAgent) Learn([]route.Learned) {}
