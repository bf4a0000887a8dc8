package wire

import (
	"cmp"
	"context"
	"math/rand/v2"
	"net"
	"syscall"
	"time"

	"github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"github.com/manxnet/manx/retry"
)

const (
	// firstDial is the longest wait before the first attempt to connect. Each further one is twice as late, up to
	// ConnectRetry.
	firstDial = 100 * time.Millisecond
	// leastDialTimeout is for one attempt, however short ConnectRetry is.
	leastDialTimeout = 2 * time.Second
)

// dialing connects to the peer whenever there is no session, until the peer is removed.
func (p *peer) dialing() {
	for p.awaitDial() {
		c, err := p.dial()
		if err != nil {
			p.mu.Lock()
			p.endConnecting()
			p.mu.Unlock()
			if p.gate.ctx.Err() != nil {
				return
			}
			p.emit(ConnectFailed{Err: err, Next: p.planDial()})
			continue
		}
		p.planDial()
		p.open(c)
	}
}

// awaitDial waits until it is time to connect, and records that this side does. It returns false when the peer is gone.
func (p *peer) awaitDial() bool {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		p.mu.Lock()
		if p.closed {
			p.mu.Unlock()
			return false
		}
		wait := time.Hour
		if p.mayDial() {
			if p.nextDial.IsZero() {
				p.nextDial = time.Now().Add(p.backOff())
			}
			wait = time.Until(p.nextDial)
		} else {
			p.nextDial = time.Time{}
		}
		changed := p.changed
		p.connecting = p.connecting || wait <= 0
		p.mu.Unlock()
		if wait <= 0 {
			return true
		}
		timer.Reset(wait)
		select {
		case <-changed:
		case <-timer.C:
		}
	}
}

// mayDial reports whether this side should connect: not while a connection of the peer is past its OPEN. p is locked.
func (p *peer) mayDial() bool {
	if p.s.Passive || p.held || p.up != nil {
		return false
	}
	for _, c := range p.opening {
		if c.open != nil {
			return false
		}
	}
	return true
}

// backOff is the time before the next attempt to connect, with jitter (RFC 4271 section 10). p is locked.
func (p *peer) backOff() time.Duration {
	wait := retry.Backoff{Min: firstDial, Max: p.gate.cfg.ConnectRetry}.After(p.failures + 1)
	return time.Duration((0.75 + rand.Float64()/4) * float64(wait))
}

// planDial counts an attempt and returns when the next one is due.
func (p *peer) planDial() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failures++
	p.nextDial = time.Now().Add(p.backOff())
	return p.nextDial
}

// nextAttempt returns when this side connects next, zero if it does not.
func (p *peer) nextAttempt() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.mayDial() {
		return time.Time{}
	}
	if p.nextDial.IsZero() {
		p.nextDial = time.Now().Add(p.backOff())
	}
	return p.nextDial
}

func (p *peer) dial() (*conn, error) {
	s := p.settings()
	p.emit(Connecting{})
	d := net.Dialer{Timeout: max(p.gate.cfg.ConnectRetry-time.Second, leastDialTimeout), KeepAlive: -1,
		ControlContext: func(_ context.Context, _, _ string, c syscall.RawConn) error {
			portLater(c)
			return s.protect(c)
		}}
	d.SetMultipathTCP(false) // MD5 needs plain TCP
	if s.Source.IsValid() {
		d.LocalAddr = tcpAddr(s.Source.WithZone(s.Address.Zone()), 0)
	}
	tcp, err := d.DialContext(p.gate.ctx, network(s.Address), tcpAddr(s.Address, cmp.Or(s.Port, bgp.BGP_PORT)).String())
	if err != nil {
		return nil, err
	}
	return newConn(p, s, tcp.(*net.TCPConn), false), nil
}
