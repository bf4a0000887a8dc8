package wire

import (
	"net/netip"
	"time"

	"github.com/manxnet/manx/bgp/wire/message"
)

// Event is something that happened on the wire of one peer. Events of one connection come in order.
type Event interface{ event() }

// Connecting: this side begins to connect.
type Connecting struct{}

// ConnectFailed: no TCP connection came about.
type ConnectFailed struct {
	Err  error
	Next time.Time // of the next attempt
}

// Connected: there is a TCP connection, and our OPEN was sent.
type Connected struct{ Incoming bool }

// Opened: the peer's OPEN is acceptable. The session comes up when both sides have sent a KEEPALIVE.
type Opened struct{ Open *Open }

// Up: the session is established on the wire. The speaker's state follows within milliseconds.
type Up struct {
	Open            *Open
	Local, Remote   netip.AddrPort
	Hold, Keepalive time.Duration // negotiated; 0: none
}

// Ended: a connection ended. Of several facts about its end, the first one counts.
type Ended struct {
	Cause       Cause
	Established bool // it had been handed over
	Opened      bool // the peer's OPEN was accepted
	Incoming    bool
	// Sent and Received are the NOTIFICATION with which the connection ended; nil: none.
	Sent, Received *message.Notification
	Detail         string // more about the cause
	Err            error  // of TCP

	// Graceful: the peer's routes are kept for RestartTime (RFC 4724 section 4.2).
	Graceful    bool
	RestartTime time.Duration
	Next        time.Time // of the next attempt to connect; zero if this side does not
}

// OtherAddress: the peer connected to an address of this host that its session does not use.
type OtherAddress struct{ Local netip.Addr }

// Mended: an UPDATE of the peer was changed before the speaker got it.
type Mended struct {
	message.Mend
	Count int // of such UPDATEs in this session
	At    time.Time
}

// Prefixes: the number of the peer's routes is at another level of its limit.
type Prefixes struct {
	Level Level
	Limit Limit
}

func (Connecting) event()    {}
func (ConnectFailed) event() {}
func (Connected) event()     {}
func (Opened) event()        {}
func (Up) event()            {}
func (Ended) event()         {}
func (OtherAddress) event()  {}
func (Mended) event()        {}
func (Prefixes) event()      {}

// Cause is the reason for the end of a connection.
type Cause int

const (
	CauseConnection   Cause = iota // TCP ended: the peer closed it, or the network between was cut
	CauseNotification              // one was sent or received
	CauseSilence                   // no OPEN, or no KEEPALIVE after it, within the time for that
	CauseCollision                 // another connection with the peer is used (RFC 4271 section 6.8)
	CauseReplaced                  // the peer restarted: a new connection takes its place (RFC 4724 section 5)
	CauseSendHold                  // the peer took no data for too long (RFC 9687)
	CauseLimit                     // more routes than the limit
	CauseLocal                     // this side wanted it
	CauseSettings                  // the settings of the session changed, or it was removed
)
