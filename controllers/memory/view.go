package memory

import (
	"go.uber.org/zap"

	"github.com/manxnet/manx/datastore"
)

// View is one reader's state of a store, which a test controls.
type View struct {
	Tables *datastore.Tables
	store  *Store
	at     int
}

// NewView returns a view with the current state.
func NewView(s *Store) *View {
	v := &View{Tables: datastore.NewTables(zap.NewNop(), ""), store: s}
	v.CatchUp(0)
	v.Tables.Apply(datastore.Event{Type: datastore.EventInSync, Revision: s.now()})
	return v
}

func (s *Store) now() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.revision
}

// CatchUp delivers all but the last lag events to the view.
func (v *View) CatchUp(lag int) {
	events, _ := v.store.since(v.at)
	if n := len(events) - lag; n > 0 {
		v.Tables.Apply(events[:n]...)
		v.at += n
	}
}
