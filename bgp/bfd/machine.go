package bfd

import "time"

// slowest is how often at most packets are sent unless the session is up (RFC 5880 section 6.8.3).
const slowest = time.Second

// machine is one session without sockets and clock: everything happens in receive and at the times that next names.
type machine struct {
	transmit, receiveEvery time.Duration // as configured
	multiplier             uint8

	state        State
	diag         Diagnostic
	my, your     uint32
	remoteState  State
	remoteDiag   Diagnostic
	remoteMult   uint8
	remoteTx     time.Duration // the remote's desired minimum transmit interval
	remoteRx     time.Duration // its required minimum receive interval; 0: send nothing
	receivedAny  bool
	independent  bool // the remote's C bit
	desiredTx    time.Duration
	requiredRx   time.Duration
	pollDone     func()        // ends the change that a poll sequence is for; nil: no poll
	sendTx       time.Duration // the interval for sending: desiredTx, once the remote knows it
	detectRx     time.Duration // the interval for detection: requiredRx, once the remote knows it
	nextSend     time.Time
	expires      time.Time // zero: no packet is waited for
	lastUp       time.Time // when the remote last sent Up
	late         bool      // the last expiry was put off because this machine was late itself
	closingUntil time.Time // the session ends then; AdminDown is sent until
	confirmed    bool      // the remote's last packet carried our discriminator
	doubtful     bool      // while up, the last packet had state Down and no discriminator
	unconfirmed  uint64    // such packets
}

func newMachine(my uint32, transmit, receive time.Duration, multiplier uint8, now time.Time) *machine {
	return &machine{
		transmit: transmit, receiveEvery: receive, multiplier: multiplier, state: Down, my: my, remoteState: Down,
		remoteRx:  1,
		desiredTx: max(transmit, slowest), sendTx: max(transmit, slowest), requiredRx: receive, detectRx: receive,
		nextSend: now,
	}
}

// detection is how long the remote may be silent (RFC 5880 section 6.8.4).
func (m *machine) detection() time.Duration {
	return time.Duration(m.remoteMult) * max(m.detectRx, m.remoteTx)
}

// interval is the time between two packets, before jitter (RFC 5880 section 6.8.7).
func (m *machine) interval() time.Duration { return max(m.sendTx, m.remoteRx) }

// packet returns the packet to send now.
func (m *machine) packet(final bool) packet {
	return packet{
		diag: m.diag, state: m.state, poll: m.pollDone != nil && !final, final: final, multiplier: m.multiplier,
		my: m.my, your: m.your, desiredTx: m.desiredTx, requiredRx: m.requiredRx,
	}
}

// change is a transition of the state.
type change struct {
	from, to State
	// fresh: the remote did not find a failure, its session has only just begun.
	fresh bool
	// doubtful: nothing proves that the remote sent it.
	doubtful bool
}

// receive handles a packet for this session (RFC 5880 section 6.8.6). answer: it must be answered at once.
//
// A packet without our discriminator announces that the remote has begun anew. Any host that can send from its address
// can forge that, and the RFC would have us go down. But the remote of a session that is up either goes on to send
// packets with our discriminator, or has really begun anew and sends none: we wait for the detection time to know.
func (m *machine) receive(p packet, now time.Time) (c change, answer bool) {
	c.from = m.state
	defer func() { c.to = m.state }()
	if m.state == Up && p.your == 0 {
		m.doubtful = true
		m.unconfirmed++
		return c, false
	}
	m.receivedAny, m.confirmed, m.doubtful = true, p.your != 0, false
	m.your, m.remoteState, m.remoteDiag, m.independent = p.my, p.state, p.diag, p.independent
	m.remoteMult, m.remoteTx, m.remoteRx = p.multiplier, p.desiredTx, p.requiredRx
	if p.final && m.pollDone != nil {
		done := m.pollDone
		m.pollDone = nil
		done()
		if m.state == Up {
			m.setTimers(now)
		}
	}
	m.late = false
	if m.state == AdminDown {
		return c, false
	}
	if p.state == Up {
		m.lastUp = now
	}
	switch {
	case p.state == AdminDown:
		if m.state != Down {
			m.down(neighborSignaledDown, now)
			c.fresh = true
		}
	case m.state == Down && p.state == Down:
		m.enter(Init, now)
	case m.state == Down && p.state == Init, m.state == Init && (p.state == Init || p.state == Up):
		m.enter(Up, now)
	case m.state == Up && p.state == Down:
		m.down(neighborSignaledDown, now)
		c.fresh = p.diag == noDiagnostic || p.diag == administrativelyDown
	}
	m.expires = now.Add(m.detection())
	if d := m.interval(); m.nextSend.Sub(now) > d { // the remote may request them faster now
		m.nextSend = now.Add(jitter(d, m.multiplier))
	}
	return c, p.poll
}

func (m *machine) enter(s State, now time.Time) {
	m.state, m.nextSend = s, now
	if s == Up {
		m.diag = noDiagnostic
		m.setTimers(now)
	}
}

func (m *machine) down(d Diagnostic, now time.Time) {
	m.state, m.diag, m.nextSend = Down, d, now
	m.pollDone = nil
	m.desiredTx, m.sendTx = max(m.transmit, slowest), max(m.transmit, slowest)
	m.requiredRx, m.detectRx = m.receiveEvery, m.receiveEvery
}

// configure changes the timers. A session that is up stays so: the remote learns of them by a poll sequence.
func (m *machine) configure(transmit, receive time.Duration, multiplier uint8, now time.Time) {
	m.transmit, m.receiveEvery, m.multiplier = transmit, receive, multiplier
	if m.state == Up {
		m.setTimers(now)
		return
	}
	m.desiredTx, m.sendTx = max(transmit, slowest), max(transmit, slowest)
	m.requiredRx, m.detectRx = receive, receive
}

// setTimers announces the configured timers in a poll sequence. Slower sending and faster detection wait until the
// remote has answered, or it would think that packets are missing, or we would (RFC 5880 section 6.8.3).
func (m *machine) setTimers(now time.Time) {
	if m.pollDone != nil || m.desiredTx == m.transmit && m.requiredRx == m.receiveEvery {
		return // a change during a poll sequence waits for its end: a late answer must not count for it
	}
	m.desiredTx, m.requiredRx = m.transmit, m.receiveEvery
	m.sendTx = min(m.sendTx, m.transmit)
	m.detectRx = max(m.detectRx, m.receiveEvery)
	m.nextSend = now
	m.pollDone = func() { m.sendTx, m.detectRx = m.desiredTx, m.requiredRx }
}

// longestGoodbye bounds it if the remote requests hardly any packets.
const longestGoodbye = 10 * time.Second

// close sends AdminDown for as long as the remote may need to receive it (RFC 5880 section 6.8.16).
func (m *machine) close(now time.Time) {
	m.state, m.diag, m.nextSend, m.pollDone = AdminDown, administrativelyDown, now, nil
	m.closingUntil = now.Add(min(longestGoodbye, max(m.detection(), time.Duration(m.multiplier)*m.interval())))
	m.expires = time.Time{}
}

func (m *machine) closed(now time.Time) bool {
	return !m.closingUntil.IsZero() && !now.Before(m.closingUntil)
}

// starved is how late a timer may be before the own process, and not the remote, is at fault.
const starved = 10 * time.Millisecond

// expire ends the session if the remote was silent for too long.
func (m *machine) expire(now time.Time) (c change) {
	c.from, c.to = m.state, m.state
	if m.expires.IsZero() || now.Before(m.expires) {
		return c
	}
	if !m.late && now.Sub(m.expires) > starved {
		// We did not run when we should have: packets may have come in meanwhile that are not read yet.
		m.late, m.expires = true, now.Add(starved)
		return c
	}
	m.expires, m.late, m.confirmed = time.Time{}, false, false
	m.your = 0 // RFC 5880 section 6.8.1: bfd.RemoteDiscr
	m.remoteState = Down
	m.remoteRx = 1
	switch {
	case m.state == Up && m.doubtful:
		m.down(neighborSignaledDown, now)
		c.fresh, c.doubtful = true, true
	case m.state == Init || m.state == Up:
		m.down(detectionTimeExpired, now)
	}
	m.doubtful = false
	c.to = m.state
	return c
}

// due reports whether a packet is to be sent now, and when the next.
func (m *machine) due(now time.Time) bool {
	if now.Before(m.nextSend) {
		return false
	}
	if m.remoteRx == 0 && m.pollDone == nil && m.closingUntil.IsZero() {
		m.nextSend = now.Add(slowest) // it requests none
		return false
	}
	m.nextSend = now.Add(jitter(m.interval(), m.multiplier))
	return true
}

// next returns when the machine is to run again.
func (m *machine) next() time.Time {
	t := m.nextSend
	for _, other := range []time.Time{m.expires, m.closingUntil} {
		if !other.IsZero() && other.Before(t) {
			t = other
		}
	}
	return t
}
