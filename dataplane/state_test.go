package dataplane

import (
	"sync"

	"github.com/manxnet/manx/dataplane/link"
	"github.com/manxnet/manx/dataplane/route"
	"github.com/manxnet/manx/datastore/model"
)

// told are the newest states of agents, which tests change piece by piece.
var told sync.Map

func (a *Agent) tell(change func(*State)) {
	var s State
	if before, ok := told.Load(a); ok {
		s = before.(State)
	}
	s.Reader, s.Changed, s.All = nil, nil, false
	change(&s)
	told.Store(a, s)
	a.SetState(s)
}

// set passes a datastore on; without changed, everything in it is evaluated.
func (a *Agent) set(r model.Reader, changed ...model.Key) {
	a.tell(func(s *State) { s.Reader, s.Changed, s.All = r, changed, len(changed) == 0 })
}

func (a *Agent) unchanged(r model.Reader) { a.tell(func(s *State) { s.Reader = r }) }

func (a *Agent) synced(datastore, bgp bool) {
	a.tell(func(s *State) { s.DatastoreSynced, s.BGPSynced = datastore, bgp })
}

func (a *Agent) statics(list []route.Static) { a.tell(func(s *State) { s.Statics = list }) }

func (a *Agent) peering(list []link.Peering) { a.tell(func(s *State) { s.Peering = list }) }
