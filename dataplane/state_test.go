package dataplane

import (
	"sync"

	"github.com/manxnet/manx/dataplane/hoststate"
	"github.com/manxnet/manx/dataplane/route"
	"github.com/manxnet/manx/datastore/model"
)

// newestStates are the newest states of agents, which tests change piece by piece.
var newestStates sync.Map

func (a *Agent) changeState(change func(*State)) {
	var s State
	if before, ok := newestStates.Load(a); ok {
		s = before.(State)
	}
	s.Reader, s.Changed, s.All = nil, nil, false
	change(&s)
	newestStates.Store(a, s)
	a.SetState(s)
}

// set passes a datastore to the agent; without changed, everything in it is evaluated.
func (a *Agent) set(r model.Reader, changed ...model.Key) {
	a.changeState(func(s *State) { s.Reader, s.Changed, s.All = r, changed, len(changed) == 0 })
}

func (a *Agent) unchanged(r model.Reader) { a.changeState(func(s *State) { s.Reader = r }) }

func (a *Agent) synced(datastore, bgp bool) {
	a.changeState(func(s *State) { s.DatastoreSynced, s.BGPSynced = datastore, bgp })
}

func (a *Agent) statics(list []route.Static) { a.changeState(func(s *State) { s.Statics = list }) }

func (a *Agent) peering(list []hoststate.Peering) { a.changeState(func(s *State) { s.Peering = list }) }
