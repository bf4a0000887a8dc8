package speaker

import (
	"fmt"
	"reflect"
	"runtime"

	"github.com/eapache/channels"

	"github.com/manxnet/manx/bgp"
)

// Fault: routes that a session could not send any more are sent at the beginning of the next one, though they may have
// been withdrawn meanwhile; and behind them the FSM's own mark of the lost session ends the sender, so that the next
// session is up, silent, and without routes until the peer's hold timer ends it. Then the same again. GoBGP empties the
// queue of outgoing messages at each change of state, but receives from it only until one receive would block. Between
// two messages the queue's goroutine has to run first, so each time removes one message, on a busy machine none. Shown
// by TestSlowReaderComesBack, and by TestMutatedMessages on a busy machine. Can go when GoBGP empties the queue.
//
// The gate calls drain on the goroutine of the FSM, in OpenSent or OpenConfirm. The session before has ended then, and
// nothing is queued for the next one before it is established. The field outgoingCh is written once, before AddPeer
// returns.

// outgoingField is where GoBGP's FSM has the queue of outgoing messages.
const outgoingField = "outgoingCh"

// checkOutgoing returns an error if GoBGP's queue of outgoing messages cannot be emptied.
func checkOutgoing(server reflect.Type) error {
	if _, err := machineField[*channels.InfiniteChannel](server, outgoingField); err != nil {
		return fmt.Errorf("this GoBGP does not queue outgoing messages as expected: %w", err)
	}
	return nil
}

// findOutgoing finds the queue of a session that was just added or changed. setMu is held.
func (r *speakerRun) findOutgoing(s bgp.Session, tap *peerTap) {
	if queue := ofMachine[*channels.InfiniteChannel](r.srv, s.Wire().Address, outgoingField); queue != nil {
		tap.outgoing.Store(*queue)
	}
}

// waiting reports whether a queue has messages. nil has none.
func waiting(queue *channels.InfiniteChannel) bool { return queue != nil && queue.Len() > 0 }

// drain empties a queue to which nothing is added meanwhile. nil is empty.
func drain(queue *channels.InfiniteChannel) {
	for queue != nil {
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
