package datastore

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"github.com/manxnet/manx/datastore/model"
)

// Each kind has a state of its own: since when it is in sync or lost, why, how many objects it has up to which
// revision, and when the datastore last answered about it. What is read shows before the first snapshot.
func TestKinds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		tables := NewTables(zap.NewNop(), "")
		tables.expect(both)
		after := func(step string, want map[model.Kind]KindStatus) {
			t.Helper()
			for _, k := range tables.Kinds() {
				w := want[k.Kind]
				if k.InSync != w.InSync || !k.Since.Equal(w.Since) || !k.Answered.Equal(w.Answered) ||
					k.Objects != w.Objects || k.Revision != w.Revision || fmt.Sprint(k.Lost) != fmt.Sprint(w.Lost) {
					t.Errorf("%s: %+v, want %+v", step, k, w)
				}
			}
			if n := len(tables.Kinds()); n != len(want) {
				t.Errorf("%s: %d kinds, want %d", step, n, len(want))
			}
			time.Sleep(time.Minute) // of synctest's clock
		}
		at := func(minutes int) time.Time { return start.Add(time.Duration(minutes) * time.Minute) }
		one, other := both[0], both[1]
		after("before the first answer", map[model.Kind]KindStatus{one: {Since: at(0)}, other: {Since: at(0)}})
		tables.Apply(update("a", 3), inSyncOf(4, one))
		after("one is read", map[model.Kind]KindStatus{
			one:   {InSync: true, Since: at(1), Answered: at(1), Objects: 1, Revision: 4},
			other: {Since: at(0)}})
		tables.Apply(inSyncOf(9, other))
		tables.Apply(Event{Type: EventAlive, Kinds: both[1:]})
		after("both are", map[model.Kind]KindStatus{
			one:   {InSync: true, Since: at(1), Answered: at(1), Objects: 1, Revision: 4},
			other: {InSync: true, Since: at(2), Answered: at(2), Revision: 9}})
		tables.Apply(lostOf("no route to host", one))
		tables.Apply(Event{Type: EventAlive})
		after("one is lost, and keeps its objects", map[model.Kind]KindStatus{
			one: {Since: at(3), Answered: at(3), Objects: 1, Revision: 4,
				Lost: errors.New("no route to host")},
			other: {InSync: true, Since: at(2), Answered: at(3), Revision: 9}})
	})
}
