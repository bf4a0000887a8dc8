package storetest

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/model"
)

// Patience bounds waits for expected events; test machines are slow.
const Patience = 60 * time.Second

// Mirror is the state of a watch's reader, with all its events.
type Mirror struct {
	State               map[model.Key]int64
	Seen                []datastore.Event
	InSync, Lost, Alive int // counts of events

	t      *testing.T
	events <-chan datastore.Event
}

// Watch mirrors a watch that ends with the test.
func Watch(t *testing.T, s datastore.Store, kinds ...model.Kind) *Mirror {
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	return &Mirror{t: t, events: s.Watch(ctx, kinds...), State: map[model.Key]int64{}}
}

// Until takes events until the condition holds.
func (m *Mirror) Until(what string, done func() bool) {
	m.t.Helper()
	timeout := time.After(Patience)
	for !done() {
		select {
		case e, ok := <-m.events:
			if !ok {
				m.t.Fatalf("waiting for %s: the watch ended", what)
			}
			m.take(e)
		case <-timeout:
			m.t.Fatalf("waiting for %s: nothing; state %v; seen %+v", what, m.State, m.Seen)
		}
	}
}

// TakeWaiting takes the queued events.
func (m *Mirror) TakeWaiting() {
	for {
		select {
		case e := <-m.events:
			m.take(e)
		default:
			return
		}
	}
}

func (m *Mirror) take(e datastore.Event) {
	if e.Type == datastore.EventAlive { // it may come at any time
		m.Alive++
		return
	}
	m.Seen = append(m.Seen, e)
	switch e.Type {
	case datastore.EventUpdate:
		m.State[e.Key] = e.Revision
	case datastore.EventDelete:
		delete(m.State, e.Key)
	case datastore.EventInSync:
		m.InSync++
	case datastore.EventLost:
		m.Lost++
	}
}

// UntilInSync takes events until the next EventInSync.
func (m *Mirror) UntilInSync() {
	m.t.Helper()
	n := m.InSync
	m.Until("sync", func() bool { return m.InSync > n })
}

// UntilState takes events until exactly these objects exist, at these revisions.
func (m *Mirror) UntilState(want map[model.Key]int64) {
	m.t.Helper()
	m.Until("the final state", func() bool { return maps.Equal(m.State, want) })
}

// Of returns the events of one key as "u5 u7 d8".
func (m *Mirror) Of(k model.Key) string {
	var text []string
	for _, e := range m.Seen {
		if e.Key == k && (e.Type == datastore.EventUpdate || e.Type == datastore.EventDelete) {
			text = append(text, fmt.Sprintf("%s%d", []string{"u", "d"}[e.Type], e.Revision))
		}
	}
	return strings.Join(text, " ")
}
