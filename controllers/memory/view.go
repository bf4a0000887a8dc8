package memory

import (
	"go.uber.org/zap"

	"github.com/manxnet/manx/datastore"
)

// View is what one reader of a store knows: as much as a test lets it have.
type View struct {
	Tables *datastore.Tables
	store  *Store
	at     int
}

// NewView returns a view that knows what is there now.
func NewView(s *Store) *View {
	v := &View{Tables: datastore.NewTables(zap.NewNop(), ""), store: s}
	v.Catch(0)
	v.Tables.Apply(datastore.Event{Type: datastore.EventInSync, Revision: s.now()})
	return v
}

func (s *Store) now() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.revision
}

// Catch lets the view see all but the last lag events.
func (v *View) Catch(lag int) {
	events, _ := v.store.Since(v.at)
	if n := len(events) - lag; n > 0 {
		v.Tables.Apply(events[:n]...)
		v.at += n
	}
}
