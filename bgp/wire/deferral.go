package wire

import (
	"time"

	"github.com/manxnet/manx/bgp/wire/message"
)

// While this side restarts, its routes leave at once: a peer that has kept them takes them for refreshed, and does not
// remove them if this side is lost again (RFC 4724 section 4.2). The End-of-RIB has to wait until the routes of all
// peers are here (section 4.1): with it a peer removes what it has kept and not got again.

// quiet is how long nothing must have been written before a message of the gate that has to come behind the speaker's.
const quiet = 20 * time.Millisecond

// holdBack keeps an End-of-RIB that the speaker writes, if it has to wait, and reports whether it did.
func (c *conn) holdBack() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.heldBack != nil {
		return true // one for both
	}
	if !c.p.gate.cfg.Deferring() {
		return false
	}
	c.heldBack = time.AfterFunc(c.p.gate.cfg.Deferral, c.sendEndOfRIB)
	return true
}

// endDeferral sends the End-of-RIB that was held back, if there is one.
func (c *conn) endDeferral() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.heldBack != nil {
		c.heldBack.Reset(0)
	}
}

// sendEndOfRIB sends the End-of-RIB that was held back as soon as the speaker has written what it has for the peer.
func (c *conn) sendEndOfRIB() {
	busy := c.p.gate.cfg.Waiting(c.p.addr) || c.busy()
	c.mu.Lock()
	over := c.heldBack == nil || c.closed || c.ended != nil
	switch {
	case over:
	case busy:
		c.heldBack.Reset(quiet)
	default:
		c.heldBack = nil
	}
	c.mu.Unlock()
	if !over && !busy {
		c.write(message.EndOfRIB(c.filter.V6))
	}
}
