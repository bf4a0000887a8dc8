package datastore

import (
	"errors"
	"fmt"
	"math/rand"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"go.uber.org/zap"

	"github.com/manxnet/manx/datastore/model"
)

// In these tests nodes have a slow clock and peers a fast one, like two watches of a store without a common revision.
const slow, fast = 5, 9_000_000

var both = []model.Kind{model.KindNode, model.KindBGPPeer}

// ofPeer turns an event of a node into the same event of a peer, on the peers' clock.
func ofPeer(e Event) Event {
	e.Key.Kind = model.KindBGPPeer
	e.Revision += fast
	if e.Object != nil {
		o := model.NewObject(e.Key, new(model.BGPPeer))
		o.Revision, o.Err = e.Revision, e.Object.Err
		e.Object = o
	}
	return e
}

func inSyncOf(revision int64, kinds ...model.Kind) Event {
	return Event{Type: EventInSync, Revision: revision, Kinds: kinds}
}

func lostOf(text string, kinds ...model.Kind) Event {
	return Event{Type: EventLost, Err: errors.New(text), Kinds: kinds}
}

// contentOf lists the objects of both kinds that readers see: "a=3 | p=+7", where + stands for the fast clock.
func contentOf(s *Snapshot) string {
	text := content(s) + "| "
	for o := range s.All(model.KindBGPPeer) {
		text += fmt.Sprintf("%s=+%d ", o.Key.Name, o.Revision-fast)
	}
	return strings.TrimSpace(text)
}

// twoClocks has read a node at revision 5 and a peer at revision 9,000,001.
func twoClocks(t *testing.T) *Tables {
	tables := NewTables(zap.NewNop(), "")
	tables.expect(both)
	tables.Apply(update("a", slow), inSyncOf(slow, model.KindNode), ofPeer(update("p", 1)),
		inSyncOf(fast+1, model.KindBGPPeer))
	if s := tables.Snapshot(); !s.InSync() || contentOf(s) != "a=5 | p=+1" {
		t.Fatalf("in sync %v: %q", s.InSync(), contentOf(s))
	}
	return tables
}

func TestNothingIsHandedOutBeforeEveryWatchIsInSync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, tables := source{events: make(chan Event, 10)}, NewTables(zap.NewNop(), "")
		go func() { _ = tables.Run(t.Context(), s, model.KindNode, model.KindBGPPeer, model.KindTier) }()
		for i, e := range []Event{
			ofPeer(update("p", 1)), inSyncOf(fast+1, model.KindBGPPeer), ofPeer(update("q", 2)),
			lostOf("down", model.KindNode), update("a", slow), inSyncOf(slow, model.KindNode),
		} {
			s.events <- e
			synctest.Wait()
			if got := tables.Snapshot(); got.InSync() || got.Len() > 0 || tables.Status().Complete {
				t.Errorf("after event %d: %q", i+1, contentOf(got))
			}
		}
		s.events <- inSyncOf(77, model.KindTier) // no tier exists
		synctest.Wait()
		got, st := tables.Snapshot(), tables.Status()
		if !got.InSync() || contentOf(got) != "a=5 | p=+1 q=+2" {
			t.Errorf("in sync %v: %q", got.InSync(), contentOf(got))
		}
		if !st.InSync || !st.Complete || st.Restarts != 0 || st.Objects != 3 || st.Revision != 0 ||
			got.Revision() != 0 {
			t.Errorf("status %+v, revision %d: want no revision of the whole", st, got.Revision())
		}
		close(s.events)
	})
}

// While one kind is lost, the other goes on. Readers never see a half read state of the lost kind.
func TestOneWatchIsLostWhileTheOtherGoesOn(t *testing.T) {
	tables := twoClocks(t)
	before := tables.Snapshot()
	tables.Apply(update("b", 6), lostOf("no route to nodes", model.KindNode))
	tables.Apply(remove("a", 20), update("c", 8), ofPeer(update("q", 2)))
	s := tables.Snapshot()
	if s.InSync() || contentOf(s) != "a=5 b=6 | p=+1 q=+2" {
		t.Errorf("nodes are lost: in sync %v, %q", s.InSync(), contentOf(s))
	}
	if st := tables.Status(); st.InSync || !st.Complete || st.LastError.Error() != "no route to nodes" {
		t.Errorf("status %+v", st)
	}
	tables.Apply(lostOf("no route to peers", model.KindBGPPeer), inSyncOf(fast+2, model.KindBGPPeer))
	if st := tables.Status(); st.InSync || st.LastError.Error() != "no route to nodes" || st.Restarts != 1 {
		t.Errorf("peers are back, nodes are not: status %+v", st)
	}
	tables.Apply(ofPeer(remove("p", 3)))
	if s := tables.Snapshot(); s.InSync() || contentOf(s) != "a=5 b=6 | q=+2" {
		t.Errorf("after a deletion: in sync %v, %q", s.InSync(), contentOf(s))
	}
	tables.Apply(inSyncOf(21, model.KindNode))
	s = tables.Snapshot()
	if !s.InSync() || contentOf(s) != "b=6 c=8 | q=+2" {
		t.Errorf("in the end: in sync %v, %q", s.InSync(), contentOf(s))
	}
	if got := changes(s, before); got != "p:9000001>0 q:0>9000002 a:5>0 b:0>6 c:0>8 " {
		t.Errorf("readers are notified of %q", got)
	}
	if st := tables.Status(); !st.InSync || st.Restarts != 2 || st.Objects != 3 {
		t.Errorf("status %+v", st)
	}
}

// A deletion on one clock stays recorded, even if another clock is far ahead.
func TestALateUpdateOfTheSlowKindDoesNotUndoADeletion(t *testing.T) {
	tables := twoClocks(t)
	tables.Apply(remove("a", 7))
	for i := range int64(2 * remembered) {
		tables.Apply(ofPeer(remove(fmt.Sprint("p", i), 10+i)))
	}
	tables.Apply(update("a", 6))
	if s := tables.Snapshot(); contentOf(s) != "| p=+1" {
		t.Errorf("%q", contentOf(s))
	}
}

// Each kind's events come shuffled (but between its own loss and its own sync), and the two interleave at random.
func TestPermutationOfTwoWatches(t *testing.T) {
	random := rand.New(rand.NewSource(2))
	stream := func(of func(Event) Event, inSync, lost Event) []Event {
		part := func(events ...Event) []Event {
			random.Shuffle(len(events), func(i, j int) { events[i], events[j] = events[j], events[i] })
			for i := range events {
				events[i] = of(events[i])
			}
			return events
		}
		first := part(update("a", 11), invalid("a", 12), update("b", 13), remove("b", 14), update("c", 15),
			update("d", 16), remove("d", 17), update("d", 18))
		lostThen := part(remove("c", 30), update("e", 25), update("a", 26), invalid("f", 27))
		last := part(update("f", 31), remove("e", 32), update("e", 33), update("g", 34),
			remove("g", 35), remove("c", 36))
		return slices.Concat([]Event{inSync}, first, []Event{lost}, lostThen, []Event{inSync}, last)
	}
	for range 1000 {
		nodes := stream(func(e Event) Event { return e }, inSyncOf(10, model.KindNode), lostOf("nodes", model.KindNode))
		peers := stream(ofPeer, inSyncOf(fast+10, model.KindBGPPeer), lostOf("peers", model.KindBGPPeer))
		tables := NewTables(zap.NewNop(), "")
		tables.expect(both)
		for len(nodes)+len(peers) > 0 {
			from := &nodes
			if random.Intn(len(nodes)+len(peers)) >= len(nodes) {
				from = &peers
			}
			n := 1 + random.Intn(min(3, len(*from)))
			tables.Apply((*from)[:n]...)
			*from = (*from)[n:]
		}
		s := tables.Snapshot()
		if want := "a=26 d=18 e=33 f=31 | a=+26 d=+18 e=+33 f=+31"; !s.InSync() || contentOf(s) != want {
			t.Fatalf("in sync %v: %q, want %q", s.InSync(), contentOf(s), want)
		}
		for q := range s.Quarantined() {
			t.Fatalf("%s is in quarantine", q.Object.Key)
		}
		if n, p := s.RevisionOf(model.KindNode), s.RevisionOf(model.KindBGPPeer); n != 36 || p != fast+36 {
			t.Fatalf("nodes are at %d, peers at %d", n, p)
		}
	}
}

func TestContains(t *testing.T) {
	tables := twoClocks(t)
	a, p := model.ResourceKey(model.KindNode, "a"), model.ResourceKey(model.KindBGPPeer, "p")
	gone := model.ResourceKey(model.KindNode, "gone")
	check := func(when string, k model.Key, revision int64, want bool) {
		t.Helper()
		if got := tables.Snapshot().Contains(k, revision); got != want {
			t.Errorf("%s: %s of revision %d: %v", when, k, revision, got)
		}
	}
	check("at first", a, slow, true)
	check("at first", a, slow+1, false) // although peers have reached millions
	check("at first", p, fast+1, true)
	check("at first", p, fast+2, false)
	check("at first", model.ResourceKey(model.KindTier, "t"), 1, false) // not watched
	tables.Apply(update("gone", 6))
	check("created", gone, 6, true)
	tables.Apply(remove("gone", 8))
	check("deleted", gone, 7, true) // no event with this version follows
	check("deleted", gone, 9, false)
	tables.Apply(invalid("a", 9))
	check("invalid", a, 9, true)
	tables.Apply(lostOf("nodes", model.KindNode), update("a", 12))
	check("lost", a, 12, false)
	tables.Apply(inSyncOf(15, model.KindNode))
	check("read again", a, 15, true)
	check("read again", gone, 14, true)

	// A read outside the watch proves nothing about other objects.
	tables.takeRead(update("a", 20))
	check("read by itself", a, 20, true)
	check("read by itself", gone, 20, false)

	// With one clock, any later change suffices.
	whole := synced(update("a", 3))
	whole.Apply(update("b", 12))
	if s := whole.Snapshot(); !s.Contains(a, 12) || s.Contains(a, 13) || !s.Contains(p, 12) ||
		s.RevisionOf(model.KindTier) != 12 {
		t.Errorf("one clock at %d", s.Revision())
	}
}
