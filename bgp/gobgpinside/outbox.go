package gobgpinside

import (
	"fmt"
	"net/netip"
	"reflect"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/eapache/channels"
	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"
	"github.com/osrg/gobgp/v4/pkg/server"
)

// Fault: routes that a session could not send any more are sent at the beginning of the next one, though they may have
// been withdrawn meanwhile; and behind them the FSM's own mark of the lost session ends the sender, so that the next
// session is up, silent, and without routes until the peer's hold timer ends it. Then the same again. GoBGP empties the
// queue of outgoing messages at each change of state, but receives from it only until one receive would block. Between
// two messages the queue's goroutine has to run first, so each time removes one message, on a busy machine none. Shown
// by TestSlowReaderComesBack, and by TestMutatedMessages on a busy machine. Can go when GoBGP empties the queue.
//
// Fault: the sender of a session puts all messages that wait into one batch, sends the withdrawals of a batch before
// its announcements, and those in random order. Of several messages about a route it keeps the last one for each path
// in the table, not for the route, also where the peer knows no paths. So a peer that reads slowly is left with a route
// that is gone, or with the attributes of a path that is not the best any more, for ever. Shown by
// TestRouteThatComesAndGoesWhileAPeerReadsNothing and TestRouteThatChangesWhileAPeerReadsNothing. Can go when GoBGP
// keeps the last message for a route.

// Outbox stands between the table of GoBGP and the sender of one session. The table puts changes in. The outbox merges
// those that wait, and passes them to the sender as one message when the sender has taken the one before: the sender
// never has two to merge. For each route one change waits, so that no more waits for a peer that reads slowly than the
// table has routes.
type Outbox struct {
	field *(*channels.InfiniteChannel) // of the FSM: the queue into which the table puts its messages

	begun   atomic.Bool
	changes *channels.InfiniteChannel // in the field since the first session
	batches *channels.InfiniteChannel // before; the sender has kept it
	calls   chan func(*batch)         // for the outbox's goroutine
	taken   chan struct{}
	done    chan struct{}

	mu     sync.Mutex
	passed bool // a batch was passed that the sender may be merging still
}

const (
	outgoingField = "outgoingCh"         // where the FSM has the queue
	mergeInterval = 5 * time.Millisecond // between two batches at least: routes that change together are sent together
	// unsentBatch is how long a batch may take from the queue to the first UPDATE. It is over then: none of its UPDATEs
	// could be written.
	unsentBatch = time.Second
)

// checkOutbox returns an error if GoBGP's queue of outgoing messages cannot be replaced.
func checkOutbox(server reflect.Type) error {
	if _, err := machineField[*channels.InfiniteChannel](server, outgoingField); err != nil {
		return fmt.Errorf("this GoBGP does not queue outgoing messages as expected: %w", err)
	}
	return nil
}

// NewOutbox returns the outbox of a peer that was just added or changed: the one that it had if GoBGP still uses its
// queue.
func NewOutbox(srv *server.BgpServer, peer netip.Addr, old *Outbox) *Outbox {
	field := ofMachine[*channels.InfiniteChannel](srv, peer, outgoingField)
	if field == nil || old != nil && old.field == field {
		return old
	}
	return newOutbox(field)
}

func newOutbox(field **channels.InfiniteChannel) *Outbox {
	return &Outbox{field: field, calls: make(chan func(*batch)), taken: make(chan struct{}, 1),
		done: make(chan struct{})}
}

// Begin prepares the outbox for a session, with path identifiers or without; nothing of the one before is left. The
// gate calls it on the goroutine of the FSM, in OpenSent or OpenConfirm: other goroutines use the field only when the
// session is established, and the sender of the session before has ended. nil does nothing.
func (o *Outbox) Begin(paths bool) {
	if o == nil {
		return
	}
	if !o.begun.Load() {
		o.batches, o.changes = *o.field, channels.NewInfiniteChannel()
		*o.field = o.changes
		o.begun.Store(true)
		go o.run()
	}
	o.call(func(b *batch) {
		drain(o.changes)
		drain(o.batches)
		*b = batch{paths: paths}
		o.mu.Lock()
		defer o.mu.Unlock()
		o.passed = false
	})
}

// Waiting returns how many changes wait for the session; a batch that was passed to the sender and is not written yet
// counts as one.
func (o *Outbox) Waiting() (n int) {
	if o == nil || !o.begun.Load() {
		return 0
	}
	o.call(func(b *batch) {
		n = len(b.at) + o.changes.Len()
		if !o.free() {
			n++
		}
	})
	return n
}

// call has f called on the outbox's goroutine, and returns after that, or when the outbox has ended.
func (o *Outbox) call(f func(*batch)) {
	called := make(chan struct{})
	select {
	case o.calls <- func(b *batch) { f(b); close(called) }:
		<-called
	case <-o.done:
	}
}

// Writes is called by the sender, with an UPDATE: it has taken all that was in the queue, and merged it. nil does
// nothing.
func (o *Outbox) Writes() {
	if o == nil || !o.begun.Load() {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.passed && o.batches.Len() == 0 {
		o.passed = false
		select {
		case o.taken <- struct{}{}:
		default:
		}
	}
}

// free reports whether a batch may be passed.
func (o *Outbox) free() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return !o.passed
}

// run ends when GoBGP closes the queue, with the FSM.
func (o *Outbox) run() {
	defer close(o.done)
	defer drain(o.batches)
	defer o.batches.Close()
	var b batch
	idle := 0 // how often in a row the queue of batches was empty and no UPDATE had come
	patience, merge := time.NewTimer(unsentBatch), time.NewTimer(mergeInterval)
	defer patience.Stop()
	defer merge.Stop()
	merging := false
	for {
		select {
		case m, open := <-o.changes.Out():
			if !open {
				return
			}
			if !b.add(m) {
				o.batches.In() <- m
			}
		case f := <-o.calls:
			f(&b)
		case <-o.taken:
		case <-merge.C:
			merging = false
		case <-patience.C:
			if o.free() {
				continue
			}
			patience.Reset(unsentBatch)
			if o.batches.Len() == 0 {
				if idle++; idle > 1 {
					o.Writes()
				}
			}
		}
		if !b.empty() && !merging && o.free() {
			o.pass(&b)
			idle, merging = 0, true
			patience.Reset(unsentBatch)
			merge.Reset(mergeInterval)
		}
	}
}

// pass gives the sender a batch.
func (o *Outbox) pass(b *batch) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.batches.In() <- b.take()
	o.passed = true
}

// batch is what waits for a session: a message of GoBGP, a pointer to a struct with a slice Paths, and the paths of
// those that were merged with it, at most one for each route.
type batch struct {
	paths   bool // the peer knows paths: one for each of them
	message reflect.Value
	merged  reflect.Value
	at      map[outgoingKey]int // indices in merged
}

// outgoingKey is a route, or an End-of-RIB.
type outgoingKey struct {
	prefix netip.Prefix
	other  any // of a path, End-of-RIB or another family
}

// outgoingPath is a path of GoBGP.
type outgoingPath interface {
	IsEOR() bool
	GetFamily() gobgp.Family
	GetNlri() gobgp.NLRI
}

func (b *batch) empty() bool { return len(b.at) == 0 }

// add merges a message with the batch. It returns false for one of another kind, which is passed on as it is.
func (b *batch) add(m any) bool {
	v := reflect.ValueOf(m)
	if v.Kind() != reflect.Pointer || v.Elem().Kind() != reflect.Struct {
		return false
	}
	list := v.Elem().FieldByName("Paths")
	if !list.IsValid() || list.Kind() != reflect.Slice || !isPath(list.Type().Elem(), b.paths) ||
		!b.empty() && list.Type() != b.merged.Type() {
		return false
	}
	if b.empty() {
		b.message, b.at = v, make(map[outgoingKey]int, list.Len())
		b.merged = reflect.MakeSlice(list.Type(), 0, list.Len())
	}
	for i := range list.Len() {
		p := list.Index(i)
		if p.IsNil() {
			continue
		}
		k := b.key(p)
		if at, known := b.at[k]; known {
			b.merged.Index(at).Set(p)
			continue
		}
		b.at[k] = b.merged.Len()
		b.merged = reflect.Append(b.merged, p)
	}
	return true
}

// isPath reports whether a type is that of GoBGP's paths; with keys, if it also has the method that names a path in the
// table, with an answer that can be compared.
func isPath(t reflect.Type, keys bool) bool {
	if t.Kind() != reflect.Pointer || !t.Implements(reflect.TypeFor[outgoingPath]()) {
		return false
	}
	m, ok := t.MethodByName("GetLocalKey")
	return !keys || ok && m.Type.NumIn() == 1 && m.Type.NumOut() == 1 && m.Type.Out(0).Comparable()
}

func (b *batch) key(v reflect.Value) outgoingKey {
	p := v.Interface().(outgoingPath)
	switch {
	case p.IsEOR():
		return outgoingKey{other: p.GetFamily()}
	case b.paths:
		return outgoingKey{other: v.MethodByName("GetLocalKey").Call(nil)[0].Interface()}
	}
	if nlri, ok := p.GetNlri().(*gobgp.IPAddrPrefix); ok {
		return outgoingKey{prefix: nlri.Prefix}
	}
	return outgoingKey{other: p.GetNlri().String()}
}

// take returns the batch as a message, and empties it.
func (b *batch) take() any {
	b.message.Elem().FieldByName("Paths").Set(b.merged)
	m := b.message.Interface()
	*b = batch{paths: b.paths}
	return m
}

// drain empties a queue.
func drain(queue *channels.InfiniteChannel) {
	for {
		select {
		case _, open := <-queue.Out():
			if !open {
				return
			}
		default:
			if queue.Len() == 0 { // 0 for a closed one, too
				return
			}
			runtime.Gosched() // the queue's goroutine offers its next message
		}
	}
}
