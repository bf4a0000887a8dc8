package etcd

import (
	"testing"

	"github.com/manxnet/manx/datastore"
)

// A record may have its revision from another clock than etcd's: readers get the record's, and etcd's decides what is
// one transaction, and where the watch continues.
func TestRevisionsOfAnotherClock(t *testing.T) {
	out := make(chan datastore.Event, 3)
	w := &watcher{out: out, at: position{revision: 9}}
	update := func(revision, at int64) change {
		return change{datastore.Event{Type: datastore.EventUpdate, Revision: revision}, at}
	}
	if !w.deliver(t.Context(), []change{update(700, 10), update(3, 10), update(3, 11)}) {
		t.Fatal("not delivered")
	}
	for i, want := range []datastore.Event{{Revision: 700, More: true}, {Revision: 3}, {Revision: 3}} {
		if e := <-out; e.Revision != want.Revision || e.More != want.More {
			t.Errorf("event %d: revision %d, more %v; want %d, %v", i, e.Revision, e.More, want.Revision, want.More)
		}
	}
	if w.at.revision != 11 {
		t.Errorf("the watch continues after revision %d, want 11", w.at.revision)
	}
}
