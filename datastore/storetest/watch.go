package storetest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/model"
)

func watchChanges(t *testing.T, x System) {
	s := x.Open(t)
	a, b := Create(t, s, peer("a", "10.0.0.1")), Create(t, s, peer("b", "10.0.0.2"))
	Create(t, s, model.NewObject(model.ResourceKey(model.KindTier, "t"), new(model.Tier)))
	m := Watch(t, s, model.KindBGPPeer)
	m.UntilInSync()
	if len(m.Seen) != 3 || m.State[a.Key] != a.Revision || m.State[b.Key] != b.Revision ||
		m.Seen[2].Revision < b.Revision {
		t.Fatalf("at sync: %+v", m.Seen)
	}
	a2 := Change(t, s, a, "10.0.0.3")
	remove(t, s, b.Key)
	c := Create(t, s, peer("c", "10.0.0.4"))
	m.UntilState(map[model.Key]int64{a.Key: a2.Revision, c.Key: c.Revision})
	if got := m.Of(b.Key); !strings.HasPrefix(got, fmt.Sprintf("u%d d", b.Revision)) || strings.Contains(got[1:], "u") {
		t.Errorf("events of b: %s", got)
	}
	if peerIP(m.Seen[3].Object) != "10.0.0.3" {
		t.Errorf("event without the new value: %+v", m.Seen[3])
	}
	for _, e := range m.Seen {
		if e.Key.Kind == model.KindTier || e.Object != nil && (e.Object.Err != nil ||
			e.Object.Key != e.Key || e.Object.Revision != e.Revision) {
			t.Errorf("event %+v of %+v", e, e.Object)
		}
	}
}

// In sync, the events of one kind come in the order of their revisions, one for each write.
func watchOrder(t *testing.T, x System) {
	s := x.Open(t)
	m := Watch(t, x.Open(t), model.KindBGPPeer, model.KindNode)
	m.Until("sync of both kinds", func() bool { return inSyncKinds(m) >= 2 })
	begin := len(m.Seen)
	want := map[model.Key]int64{}
	writes := 0
	for i := range 60 {
		o := peer(fmt.Sprint("p", i%7), "10.0.0.1")
		stored, err := s.Get(t.Context(), o.Key)
		switch {
		case errors.Is(err, datastore.ErrNotFound):
			want[o.Key] = Create(t, s, o).Revision
		case err != nil:
			t.Fatal(err)
		case i%5 == 0:
			remove(t, s, o.Key)
			delete(want, o.Key)
		default:
			want[o.Key] = Change(t, s, stored, fmt.Sprint("10.0.1.", i)).Revision
		}
		writes++
	}
	end := Create(t, s, peer("end", "10.0.0.1"))
	want[end.Key] = end.Revision
	m.Until("the last write", func() bool { return m.State[end.Key] == end.Revision })
	m.UntilState(want)
	last := int64(0)
	for _, e := range m.Seen[begin:] {
		if e.Revision <= last {
			t.Errorf("revision %d comes after %d", e.Revision, last)
		}
		last = e.Revision
	}
	if n := len(m.Seen) - begin; n != writes+1 {
		t.Errorf("%d events of %d writes", n, writes+1)
	}
}

// inSyncKinds returns the number of two kinds that were in sync.
func inSyncKinds(m *Mirror) (n int) {
	for _, e := range m.Seen {
		if e.Type == datastore.EventInSync {
			n += len(e.Kinds)
			if len(e.Kinds) == 0 {
				n += 2
			}
		}
	}
	return n
}

// While the reader is disconnected, the datastore drops the history that it would need: it gets the differences.
func watchForgotten(t *testing.T, x System) {
	direct, s := x.Open(t), x.OpenRemote(t)
	a, b := Create(t, direct, peer("a", "10.0.0.1")), Create(t, direct, peer("b", "10.0.0.2"))
	c := Create(t, direct, peer("c", "10.0.0.3"))
	m := Watch(t, s, model.KindBGPPeer)
	m.UntilInSync()
	if x.Rewatched != nil && x.Rewatched() != 0 {
		t.Errorf("%d watches began again on a good line", x.Rewatched())
	}
	x.Cut()
	m.Until("the loss", func() bool { return m.Lost > 0 })
	if err := m.Seen[len(m.Seen)-1].Err; !errors.Is(err, datastore.ErrUnavailable) {
		t.Errorf("why it is lost: %v", err)
	}
	a2 := Change(t, direct, Change(t, direct, a, "10.0.1.1"), "10.0.1.2")
	remove(t, direct, b.Key)
	d := Create(t, direct, peer("d", "10.0.0.4"))
	brief := Create(t, direct, peer("brief", "10.0.0.5"))
	remove(t, direct, brief.Key)
	x.Forget(t)
	x.Mend()
	m.UntilInSync()
	m.UntilState(map[model.Key]int64{a.Key: a2.Revision, c.Key: c.Revision, d.Key: d.Revision})
	if got := m.Of(c.Key); got != fmt.Sprintf("u%d", c.Revision) {
		t.Errorf("c did not change, but its events are %s", got)
	}
	if got := m.Of(brief.Key); got != "" {
		t.Errorf("brief came and went unseen, but its events are %s", got)
	}
	if got := m.Of(b.Key); !strings.HasPrefix(got, fmt.Sprintf("u%d d", b.Revision)) {
		t.Errorf("b was deleted, but its events are %s", got)
	}
	for end := time.Now().Add(Patience); x.Rewatched != nil && x.Rewatched() == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("a watch has begun again, and is not counted")
		}
	}
}

// A line that breaks again and again: each time the state is complete afterwards.
func watchFlaps(t *testing.T, x System) {
	direct, s := x.Open(t), x.OpenRemote(t)
	m := Watch(t, s, model.KindBGPPeer)
	m.UntilInSync()
	want := map[model.Key]int64{}
	for i := range 6 {
		lost := m.Lost
		x.Cut()
		m.Until("the loss", func() bool { return m.Lost > lost })
		o := Create(t, direct, peer(fmt.Sprint("p", i), "10.0.0.1"))
		want[o.Key] = o.Revision
		x.Mend()
		m.UntilInSync()
		m.UntilState(want)
	}
}

func watchEnds(t *testing.T, x System) {
	s := x.Open(t)
	ctx, cancel := context.WithCancel(context.Background())
	first, second := s.Watch(ctx, model.KindNode), s.Watch(context.Background(), model.KindNode)
	cancel()
	for range first {
	}
	s.Close()
	for range second {
	}
}

func watchUnknown(t *testing.T, x System) {
	events := x.Open(t).Watch(context.Background(), "Cow")
	e := <-events
	if e.Type != datastore.EventLost || e.Err == nil || !strings.Contains(e.Err.Error(), "Cow") {
		t.Errorf("%+v", e)
	}
	if e, ok := <-events; ok {
		t.Errorf("then %+v", e)
	}
}

// Tables filled by the store contain each write sooner or later, and show it as soon as Contains reports it, regardless
// of other kinds.
func tablesContain(t *testing.T, x System) {
	s := x.Open(t)
	tables := datastore.NewTables(zap.NewNop(), "")
	go func() { _ = tables.Run(t.Context(), x.OpenRemote(t), model.KindBGPPeer, model.KindTier) }()
	with := func(k model.Key, revision int64) *datastore.Snapshot {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), Patience)
		defer cancel()
		seen := tables.Snapshot()
		for !seen.InSync() || !seen.Contains(k, revision) {
			var err error
			if seen, err = tables.Wait(ctx, seen); err != nil {
				t.Fatalf("%s of revision %d: %v", k, revision, err)
			}
		}
		return seen
	}
	a := Create(t, s, peer("a", "10.0.0.1"))
	for i := range 20 {
		Create(t, s, model.NewObject(model.ResourceKey(model.KindTier, fmt.Sprint("t", i)), new(model.Tier)))
		if i == 10 {
			x.Cut()
			a = Change(t, s, a, "10.0.2.1")
			x.Mend()
		}
		a = Change(t, s, a, fmt.Sprint("10.0.1.", i+1))
		if got := with(a.Key, a.Revision).Get(a.Key); got == nil || got.Revision < a.Revision {
			t.Fatalf("the snapshot of %d has %+v", a.Revision, got)
		}
	}
	remove(t, s, a.Key)
	b := Create(t, s, peer("b", "10.0.0.1"))
	seen := with(b.Key, b.Revision)
	if seen.Get(a.Key) != nil || seen.Get(b.Key) == nil || !seen.Contains(a.Key, a.Revision) {
		t.Errorf("at %d: a is %v, b is %v", b.Revision, seen.Get(a.Key), seen.Get(b.Key))
	}
}
