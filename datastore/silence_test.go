package datastore

import (
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"github.com/manxnet/manx/datastore/model"
)

// The time of the last answer is that of any event from the datastore but a loss. After one and a half heartbeats
// without one the datastore is silent, whether or not the loss is known.
func TestSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tables := NewTables(zap.NewNop(), "")
		tables.expect(both)
		expect := func(what string, age time.Duration, silent bool) {
			t.Helper()
			s := tables.Status()
			if got := time.Since(s.Answered); got != age || s.Silent != silent {
				t.Errorf("%s: the last answer is %v old, silent: %v; want %v, %v", what, got, s.Silent, age, silent)
			}
		}
		pass := func(d time.Duration) { time.Sleep(d) } // of synctest's clock
		pass(time.Hour)
		if s := tables.Status(); !s.Answered.IsZero() || s.Silent {
			t.Errorf("before the first answer: %+v", s)
		}
		for _, e := range []Event{inSyncOf(3, model.KindNode), {Type: EventAlive, Kinds: both[:1]}, {Type: EventAlive},
			update("a", 4)} {
			tables.Apply(e)
			pass(90 * time.Second)
			expect("in time", 90*time.Second, false)
			pass(time.Second)
			expect("late", 91*time.Second, true)
			tables.Apply(lostOf("no route to host", model.KindNode))
			expect("a loss is no answer", 91*time.Second, true)
		}
	})
}
