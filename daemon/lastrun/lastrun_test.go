package lastrun

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/manxnet/manx/bgp"
	"github.com/manxnet/manx/daemon/bus"
	"github.com/manxnet/manx/daemon/deps"
	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/connect"
	"github.com/manxnet/manx/datastore/laststate"
	"github.com/manxnet/manx/datastore/model"
)

// newForTest returns the part of a node with its file in dir.
func newForTest(dir string) *Part {
	d := deps.Deps{Node: deps.Node{Name: "n1", Datastore: connect.Embedded}, Log: zap.NewNop(), Bus: new(bus.Bus),
		Tables: datastore.NewTables(zap.NewNop(), "n1")}
	origin := func() (laststate.Origin, error) { return laststate.Origin{Type: connect.Embedded}, nil }
	return New(d, Config{Path: filepath.Join(dir, "last-state.json"), Origin: origin})
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// BGP begins from the last state as soon as the datastore is known to be away, and in two seconds at the latest. A
// state that may be outdated has more patience, and a fact that forbids it has no end.
func TestWhenTheDatastoreCountsAsAway(t *testing.T) {
	away, never := errors.New("connection refused"), time.Duration(0)
	missing := &datastore.KeyError{Op: "get", Err: datastore.ErrNotFound}
	for _, c := range []struct {
		name string
		set  func(*Part)
		want time.Duration // the first time at which it counts as away
	}{
		{"no answer", func(*Part) {}, time.Second},
		{"an error", func(l *Part) { l.Waiting(away) }, 100 * time.Millisecond},
		{"opened, and then nothing", func(l *Part) { l.Opened() }, 2 * time.Second},
		{"an error before it was opened", func(l *Part) { l.Waiting(away); l.Opened() }, 2 * time.Second},
		{"an error after it was opened", func(l *Part) { l.Opened(); l.Waiting(away) }, 100 * time.Millisecond},
		{"the watch is lost", func(l *Part) {
			l.Opened()
			l.Tables.Apply(datastore.Event{Type: datastore.EventLost, Err: away})
		}, 100 * time.Millisecond},
		{"no such node", func(l *Part) { l.Opened(); l.Waiting(missing) }, never},
		{"no such node, and then away", func(l *Part) { l.Waiting(missing); l.Waiting(away) },
			100 * time.Millisecond},
		{"a calico-node", func(l *Part) { l.Opened(); l.SetHold(true) }, never},
		{"an old state", func(l *Part) { l.patience = longPatience; l.Waiting(away) }, 30 * time.Second},
		{"an old state, no answer", func(l *Part) { l.patience = longPatience }, 30 * time.Second},
		{"an old state, opened", func(l *Part) { l.patience = longPatience; l.Opened() }, time.Minute},
	} {
		l := newForTest(t.TempDir())
		c.set(l)
		got := never
		for after := 100 * time.Millisecond; after < time.Hour && got == never; after += 100 * time.Millisecond {
			if l.silent(after) != nil {
				got = after
			}
		}
		if got != c.want {
			t.Errorf("%s: after %v, want %v", c.name, got, c.want)
		}
	}
}

// The file is written when the objects differ, and has the revision and the time when it is confirmed. A file that a
// start would refuse is a notice.
func TestLastStateIsWritten(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	l := newForTest(dir)
	node := &model.Node{Spec: model.NodeSpec{BGP: &model.NodeBGPSpec{IPv4Address: "192.0.2.1/24"}}}
	put := func(revision int64) {
		o := model.NewObject(model.ResourceKey(model.KindNode, "n1"), node)
		o.Revision = revision
		l.Tables.Apply(datastore.Event{Type: datastore.EventUpdate, Key: o.Key, Object: o, Revision: revision},
			datastore.Event{Type: datastore.EventInSync, Revision: revision})
		l.Bus.Decided.Publish(bus.Decision{Snapshot: l.Tables.Snapshot(),
			Desired: bgp.Compute(bgp.Input{Reader: l.Tables.Snapshot(), Node: "n1"})})
	}
	put(7)
	if !l.write(false) {
		t.Fatal(l.failure)
	}
	content := func() string {
		b, err := os.ReadFile(l.config.Path)
		must(t, err)
		return string(b)
	}
	first := content()
	if put(8); !l.write(false) || content() != first {
		t.Errorf("equal objects are written again: %s", content())
	}
	old := time.Now().Add(-2 * time.Hour)
	must(t, os.Chtimes(l.config.Path, old, old))
	if again := newForTest(dir); again.earlier == nil || again.patience != longPatience {
		t.Errorf("an old file: %+v, %v", again.earlier, again.refused)
	}
	if !l.write(true) || !strings.Contains(content(), `"revision":8`) {
		t.Errorf("confirmed: %s", content())
	}
	second := content()
	must(t, os.Chtimes(l.config.Path, old, old))
	if !l.write(true) || content() != second {
		t.Errorf("confirmed again: %s", content())
	}
	again := newForTest(dir)
	if again.earlier == nil || again.patience != shortPatience || again.earlier.Revision != 8 {
		t.Errorf("the next start: %+v, %v", again.earlier, again.refused)
	}
	broken := model.ResourceKey(model.KindNode, "n1")
	again.Tables.Apply(datastore.Event{Type: datastore.EventUpdate, Key: broken, Revision: 9,
		Object: &model.Object{Key: broken, Revision: 9, Err: errors.New("broken")}},
		datastore.Event{Type: datastore.EventInSync, Revision: 9})
	if o := again.Tables.Snapshot().Get(broken); o == nil || o.Revision != 8 {
		t.Errorf("an object that is invalid at the next start: %+v", o)
	}
	again.config.BesideCalico = true
	again.begin(errors.New("no answer"))
	if s := again.InUse(); s == nil || s.File != l.config.Path || s.Since.IsZero() || s.Objects[model.KindNode] != 1 {
		t.Errorf("in use: %+v", s)
	}
	if os.Geteuid() != 0 {
		return // the folder of a user may be another user's to change
	}
	must(t, os.Chmod(dir, 0o777))
	node = &model.Node{}
	put(9)
	if l.write(false) || len(l.Notices()) != 1 || !strings.Contains(l.Notices()[0].Text, "is not kept") {
		t.Errorf("a folder that everybody can change: %v", l.Notices())
	}
	must(t, os.Chmod(dir, 0o755))
	if put(10); !l.write(true) || len(l.Notices()) != 0 {
		t.Errorf("repaired: %v", l.Notices())
	}
}
