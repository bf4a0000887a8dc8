package datastore

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/manxnet/manx/datastore/model"
)

// getStore is a store of which only Get is called.
type getStore struct {
	Store
	objects map[string]*model.Object
	err     error
}

func (s getStore) Get(_ context.Context, k model.Key) (*model.Object, error) {
	if s.err != nil {
		return nil, s.err
	}
	if o := s.objects[k.Name]; o != nil {
		return o, nil
	}
	return nil, &KeyError{Op: "get", Key: k, Err: ErrNotFound}
}

// TestReread: an object that was read again is used although its event has not come.
func TestReread(t *testing.T) {
	tables := synced(update("a", 3), invalid("b", 5), invalid("c", 6), invalid("d", 7), invalid("e", 8))
	store := getStore{objects: map[string]*model.Object{"b": node("b", 11), "c": invalid("c", 6).Object,
		"d": invalid("d", 12).Object}}
	r, err := tables.Reread(t.Context(), store)
	if err != nil || r.Quarantined != 4 || r.Still != 3 || !strings.Contains(r.Reason, "broken") {
		t.Errorf("%+v, %v", r, err)
	}
	if got := content(tables.Snapshot()); got != "a=3 b=11 " {
		t.Errorf("readers see %s", got)
	}
	// Late events change nothing, except those of objects that are gone.
	tables.Apply(update("b", 11), remove("e", 13))
	if got, n := content(tables.Snapshot()), tables.Status().Quarantined; got != "a=3 b=11 " || n != 2 {
		t.Errorf("readers see %s, %d in quarantine", got, n)
	}
	// An object that was deleted after the read stays deleted.
	tables.Apply(remove("d", 20))
	tables.takeRead(Event{Type: EventUpdate, Key: node("d", 12).Key, Object: node("d", 12), Revision: 12})
	if got := content(tables.Snapshot()); got != "a=3 b=11 " {
		t.Errorf("readers see %s", got)
	}
}

func TestRereadWithoutADatastore(t *testing.T) {
	tables := synced(invalid("b", 5))
	if r, err := tables.Reread(t.Context(), getStore{err: ErrUnavailable}); !errors.Is(err, ErrUnavailable) ||
		r.Still != 1 {
		t.Errorf("%+v, %v", r, err)
	}
	tables.Apply(lostEvent("gone"))
	if r, err := tables.Reread(t.Context(),
		getStore{objects: map[string]*model.Object{"b": node("b", 11)}}); err != nil ||
		r.Still != 1 {
		t.Errorf("while the watch is out of sync: %+v, %v", r, err)
	}
}

// What this process has stored shows at once, and the watch's event of it later changes nothing.
func TestWrote(t *testing.T) {
	tables := synced(update("a", 3))
	tables.Wrote(node("a", 7))
	tables.Wrote(node("b", 8)) // the watch is past it, so its deletion has come
	if got := content(tables.Snapshot()); got != "a=7 " {
		t.Errorf("readers see %s", got)
	}
	before := tables.Snapshot()
	tables.Apply(update("a", 7))
	if tables.Snapshot() != before {
		t.Error("the event of what was written makes a new snapshot")
	}
	tables.Apply(update("a", 9))
	tables.Wrote(node("a", 7)) // a late response
	if got := content(tables.Snapshot()); got != "a=9 " {
		t.Errorf("readers see %s", got)
	}
	tables.Apply(lostEvent("gone"))
	tables.Wrote(node("a", 10)) // a second read of everything could not distinguish it from an older state
	if got := content(tables.Snapshot()); got != "a=9 " {
		t.Errorf("while the watch is out of sync readers see %s", got)
	}
}

// An object that this process has created shows before the watch delivers it, and never longer than it exists.
func TestWroteNewObject(t *testing.T) {
	for name, c := range map[string]struct {
		then []Event
		want string
	}{
		"its events are still to come":        {nil, "a=3 b=12 "},
		"the creation and the write come":     {[]Event{update("b", 11), update("b", 12)}, "a=3 b=12 "},
		"it is deleted":                       {[]Event{update("b", 11), update("b", 12), remove("b", 13)}, "a=3 "},
		"the watch continues":                 {[]Event{lostEvent("x"), inSync(10)}, "a=3 b=12 "},
		"the watch continues and delivers it": {[]Event{lostEvent("x"), inSync(10), update("b", 12)}, "a=3 b=12 "},
		"the watch continues and deletes it": {[]Event{lostEvent("x"), inSync(10), update("b", 12), remove("b", 13)},
			"a=3 "},
		"it is gone when everything is read": {[]Event{lostEvent("x"), inSync(20)}, "a=3 "},
		"it is there when everything is read": {[]Event{lostEvent("x"), update("b", 12), inSync(20)},
			"a=3 b=12 "},
		"the datastore was put back to a state before": {[]Event{lostEvent("x"), inSync(5)}, "a=3 "},
	} {
		t.Run(name, func(t *testing.T) {
			tables := synced(update("a", 3))
			tables.Wrote(node("b", 12))
			if got := content(tables.Snapshot()); got != "a=3 b=12 " {
				t.Errorf("before any event readers see %s", got)
			}
			for _, e := range c.then {
				tables.Apply(e)
			}
			if got := content(tables.Snapshot()); got != c.want {
				t.Errorf("readers see %s, want %s", got, c.want)
			}
		})
	}
}

// The response to a write that comes after the deletion does not bring the object back, even if the deletion is
// forgotten.
func TestWroteAfterTheDeletion(t *testing.T) {
	tables := synced(update("a", 3))
	tables.Apply(update("b", 12), remove("b", 13))
	tables.Wrote(node("b", 12))
	tables.Apply(lostEvent("x"))
	tables.Apply(inSync(20))
	tables.Wrote(node("b", 12))
	if got := content(tables.Snapshot()); got != "a=3 " {
		t.Errorf("readers see %s", got)
	}
	ended := model.NewObject(model.Key{Kind: model.KindWorkloadEndpoint, Namespace: "ns", Name: "e"},
		new(model.WorkloadEndpoint))
	ended.Revision = 21
	tables.Wrote(ended)
	if tables.Snapshot().Get(ended.Key) != nil {
		t.Error("the endpoint of a pod that has ended is in the tables")
	}
}
