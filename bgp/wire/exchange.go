package wire

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"github.com/manxnet/manx/bgp/wire/message"
)

// open runs the OPEN exchange on a new connection (RFC 4271 section 8.2.2), until it is handed over or ends.
func (p *peer) open(c *conn) {
	if !p.enter(c) {
		c.close(nil)
		return
	}
	end := p.exchange(c)
	if end == nil {
		c.reportUp()
		p.gate.cfg.HandOver(p.gate.ctx, c)
		return
	}
	end.Incoming, end.Opened = c.incoming, c.open != nil
	c.close(end.Sent)
	p.leave(c)
	end.Next = p.nextAttempt()
	p.emit(*end)
}

// exchange returns nil when the connection is established and can be handed over.
func (p *peer) exchange(c *conn) *Ended {
	restarting := p.gate.cfg.Restarting(p.addr)
	ours, err := ourOpen(c.settings, p.gate.cfg.RouterID, restarting, p.forwards(restarting))
	if err != nil {
		return &Ended{Cause: CauseLocal, Err: err}
	}
	if err := c.send(ours); err != nil {
		return &Ended{Cause: CauseConnection, Err: err}
	}
	p.emit(Connected{Incoming: c.incoming})
	deadline := time.Now().Add(p.gate.cfg.OpenTimeout)
	_ = c.tcp.SetReadDeadline(deadline)
	if e := c.doomed(); e != nil { // before there was a deadline to shorten
		return e
	}
	m, err := c.frames.Next()
	if end := c.opening(m, err, bgp.BGP_MSG_OPEN, message.SubInOpenSent); end != nil {
		return end
	}
	o, err := readOpen(m, c.settings, p.gate.cfg.RouterID)
	if err != nil {
		return c.refused(err)
	}
	p.mu.Lock()
	c.open = o
	p.mu.Unlock()
	p.emit(Opened{Open: o})
	if !p.compete(c, time.Now()) {
		return &Ended{Cause: CauseCollision, Sent: message.Cease(message.SubCollision)}
	}
	return p.confirm(c, ours)
}

// forwards reports whether this host still forwards by the routes that the peer may have kept. The kernel does so over
// the end of a session and of the daemon, but not over that of the host. After the restart time the peer has no such
// routes.
func (p *peer) forwards(restarting bool) bool {
	return !restarting || p.gate.cfg.Forwarding() >= time.Duration(p.settings().RestartTime)*time.Second
}

// confirm exchanges KEEPALIVEs. This side sends its own when the speaker is ready for the session. Until then the
// connection is read, so that none is handed over that has ended meanwhile.
func (p *peer) confirm(c *conn, ours []byte) *Ended {
	hold, _, _ := c.open.timers(c.settings)
	patience := hold // with the peer's silence
	silent := time.Now().Add(patience)
	sent, heard := false, false
	reading := c.read()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		if e := c.doomed(); e != nil {
			c.stopReading(reading)
			return e
		}
		now := time.Now()
		may, changed, wait := p.mayConfirm(c, now)
		if may && !sent {
			sent = true
			if most := p.gate.cfg.OpenTimeout; !heard && (hold == 0 || now.Add(most).Before(silent)) {
				patience, silent = most, now.Add(most)
			}
			if err := c.send(message.Keepalive()); err != nil {
				c.stopReading(reading)
				return &Ended{Cause: CauseConnection, Err: err}
			}
		}
		proven := c.proven(len(ours))
		if sent && heard && !proven {
			wait = provenEvery
		}
		if sent && heard && proven {
			c.stopReading(reading)
			if p.handOver(c, now) {
				return nil
			}
			if e := c.doomed(); e != nil {
				return e
			}
			return &Ended{Cause: CauseLocal, Sent: message.Cease(message.SubRejected),
				Detail: "the speaker has left the state in which it takes connections"}
		}
		timed := hold != 0 || sent
		if timed && (wait == 0 || silent.Sub(now) < wait) {
			wait = silent.Sub(now)
		}
		timer.Reset(cmp.Or(wait, time.Hour))
		select {
		case r := <-reading:
			if end := c.opening(r.message, r.err, bgp.BGP_MSG_KEEPALIVE, message.SubInOpenConfirm); end != nil {
				return end
			}
			heard, patience, silent = true, hold, time.Now().Add(hold)
			reading = nil
			if !sent {
				reading = c.read()
			}
		case <-changed:
		case <-timer.C:
			if timed && !time.Now().Before(silent) {
				c.stopReading(reading)
				return silence("KEEPALIVE", patience)
			}
		}
	}
}

// provenEvery is the time between two looks at the acknowledgement of our OPEN.
const provenEvery = 20 * time.Millisecond

// proven reports whether the other end has acknowledged our OPEN, of so many bytes, if the session has a password or a
// least TTL. The kernel may have taken a handshake, and data behind it, before the connection was protected; of later
// packets it takes only those of the peer.
func (c *conn) proven(open int) bool {
	if !c.incoming || c.settings.Password == "" && c.settings.MinTTL == 0 {
		return true
	}
	n, err := acknowledged(c.tcp)
	return err == nil && n >= uint64(open)
}

// opening returns how the connection ended if it did: by an error, or by another message than the expected one.
func (c *conn) opening(m []byte, err error, want byte, sub uint8) *Ended {
	if e := c.doomed(); e != nil {
		return e
	}
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return silence("OPEN", c.p.gate.cfg.OpenTimeout)
	case err != nil:
		return c.refused(err)
	case m[18] == want:
		return nil
	case m[18] == bgp.BGP_MSG_NOTIFICATION:
		return &Ended{Cause: CauseNotification, Received: message.ReadNotification(m)}
	}
	return &Ended{Cause: CauseNotification, Sent: &message.Notification{Code: message.CodeFSM, Sub: sub},
		Detail: "it sent an " + message.KindName(m[18]) + " instead of an " + message.KindName(want)}
}

// refused answers an error of the peer's message, or of the connection.
func (c *conn) refused(err error) *Ended {
	n, text, answer := refusal(err)
	switch {
	case answer:
		return &Ended{Cause: CauseNotification, Sent: &n, Detail: text}
	case text != "":
		return &Ended{Cause: CauseConnection, Detail: text}
	}
	return &Ended{Cause: CauseConnection, Err: err}
}

// silence is the end of a connection on which the peer has not sent a message in time.
func silence(missing string, within time.Duration) *Ended {
	return &Ended{Cause: CauseSilence, Sent: &message.Notification{Code: message.CodeHold},
		Detail: fmt.Sprintf("has sent no %s within %s", missing, within)}
}

// readResult is what read got.
type readResult struct {
	message []byte
	err     error
}

// read reads the next message in the background.
func (c *conn) read() chan readResult {
	_ = c.tcp.SetReadDeadline(time.Time{})
	out := make(chan readResult, 1)
	go func() {
		m, err := c.frames.Next()
		out <- readResult{m, err}
	}()
	return out
}

// stopReading ends read. A message that it has got meanwhile stays to be read.
func (c *conn) stopReading(reading chan readResult) {
	if reading == nil {
		return
	}
	_ = c.tcp.SetReadDeadline(time.Unix(1, 0))
	if r := <-reading; r.message != nil {
		c.frames.Back(r.message)
	}
	_ = c.tcp.SetReadDeadline(time.Time{})
}
