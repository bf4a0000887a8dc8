package wire

import (
	"errors"
	"io"
	"os"

	"github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"github.com/manxnet/manx/bgp/wire/message"
)

// Read returns the messages of the peer, checked, behind its OPEN and KEEPALIVE.
func (c *conn) Read(b []byte) (int, error) {
	if !c.taken {
		c.taken = true
		if end := c.doomed(); end != nil { // before the speaker took it
			c.finish(*end)
		}
	}
	for {
		if len(c.out) > 0 {
			n := copy(b, c.out)
			c.out = c.out[n:]
			return n, nil
		}
		if c.over {
			return 0, io.EOF
		}
		if m, end := c.interrupted(); m != nil {
			c.injected(m)
			continue
		} else if end != nil {
			c.finish(*end)
			continue
		}
		m, err := c.frames.Next()
		if errors.Is(err, os.ErrDeadlineExceeded) {
			if c.sleep() {
				continue
			}
			return 0, err
		}
		if err != nil {
			c.finish(*c.refused(c.failure(err)))
			continue
		}
		c.receive(m)
	}
}

// interrupted returns a message to inject, or the end that somebody wants.
func (c *conn) interrupted() (m []byte, end *Ended) {
	c.mu.Lock()
	defer c.mu.Unlock()
	m, c.inject = c.inject, nil
	return m, c.wanted
}

// sleep reports whether a read ended because of wake, and restores the speaker's deadline.
func (c *conn) sleep() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	was := c.woken
	c.woken = false
	if was {
		_ = c.tcp.SetReadDeadline(c.readDeadline)
	}
	return was
}

// failure returns the error of the connection that was seen first.
func (c *conn) failure(err error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failed != nil {
		return c.failed
	}
	return err
}

func (c *conn) injected(m []byte) {
	c.p.synced(true)
	c.out = m
}

// receive passes on a message of the established session, or ends it.
func (c *conn) receive(m []byte) {
	switch m[18] {
	case bgp.BGP_MSG_KEEPALIVE:
		c.out = m
	case bgp.BGP_MSG_UPDATE:
		c.update(m)
	case bgp.BGP_MSG_NOTIFICATION:
		c.finish(Ended{Cause: CauseNotification, Received: message.ReadNotification(m)})
	case bgp.BGP_MSG_ROUTE_REFRESH:
		if c.filter.Refreshes(m) {
			c.out = m
		}
	default:
		c.finish(Ended{Cause: CauseNotification, Detail: "it sent a second OPEN",
			Sent: &message.Notification{Code: message.CodeFSM, Sub: message.SubInEstablished}})
	}
}

func (c *conn) update(m []byte) {
	f := c.filter.Check(m)
	if f.Reset != nil {
		c.finish(Ended{Cause: CauseNotification, Sent: f.Reset, Detail: f.Why})
		return
	}
	if c.out = f.Message; c.out == nil {
		c.out = message.Keepalive() // the peer is alive
	}
	for _, mend := range f.Mends {
		c.report(mend)
	}
	if len(f.Withdrawn)+len(f.Announced) > 0 {
		if l, tooMany := c.countRoutes(f); tooMany {
			c.finish(c.overLimit(l))
			return
		}
		announced := append([]message.Route(nil), c.filter.Routes(f.Announced)...)
		c.p.receiver.Update(c.filter.Routes(f.Withdrawn), announced, f.NextHop)
	}
	if f.EndOfRIB {
		c.p.synced(false)
	}
}

// finish ends the session on this side's or the peer's initiative, with a NOTIFICATION if e has one to send. The
// speaker reads one after which it drops the peer's routes, unless they are kept for a graceful restart: then the
// connection just ends.
func (c *conn) finish(e Ended) {
	c.over = true
	if e.Cause == CauseLimit {
		c.p.setHeld(true)
	}
	e.Established, e.Opened, e.Incoming = true, true, c.incoming
	connection := e.Cause == CauseConnection && e.Detail == "" || e.Cause == CauseReplaced
	if e.Graceful = connection && c.open.Graceful && c.open.RestartTime > 0; e.Graceful {
		e.RestartTime = c.open.RestartTime
		if c.p.keepsStale() { // of an even earlier session (RFC 4724 section 4.2)
			c.injected(message.EndOfRIB(c.filter.V6))
		}
	} else {
		c.out = message.Notification{Code: message.CodeCease}.Message()
	}
	c.reportEnd(e)
	if e.Sent != nil {
		_ = c.send(e.Sent.Message())
	}
}

// reportEnd reports the end of the session, once.
func (c *conn) reportEnd(e Ended) {
	c.mu.Lock()
	first := c.ended == nil
	if first {
		c.ended = &e
	}
	c.mu.Unlock()
	if first {
		c.p.lost(e)
		c.p.receiver.End()
		c.p.emit(e)
	}
}
