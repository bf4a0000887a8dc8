package bfd

import (
	"container/heap"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"time"

	"go.uber.org/zap"
)

// Config has the parameters of an Engine.
type Config struct {
	Logger *zap.Logger // none: nothing is logged
	// OnEvent is called for each session that comes up or goes down. It must return at once.
	OnEvent func(Event)
}

// Engine runs sessions. When the process ends, it sends nothing: the remote detects the loss, and must be able to
// distinguish it from an administrative end. (RFC 5882 section 4.3: with graceful restart the remote keeps the routes,
// if it lost the BGP connection first.)
type Engine struct {
	cfg   Config
	log   *zap.Logger
	wake  chan struct{}
	gates gates

	mu        sync.Mutex
	sessions  map[netip.Addr]*session
	byMine    map[uint32]*session
	timers    timers
	listeners map[listenerKey]*listener
	closed    bool
}

// session is a Session that runs.
type session struct {
	Session
	*machine
	gate   *gate
	sock   *socket
	err    error
	since  time.Time
	reason string
	downs  uint64
	sent   uint64
	got    uint64
	at     time.Time // when it is due
	index  int       // in the heap
}

// New starts an engine. Close ends it.
func New(cfg Config) *Engine {
	if cfg.Logger == nil {
		cfg.Logger = zap.NewNop()
	}
	e := &Engine{cfg: cfg, log: cfg.Logger, wake: make(chan struct{}, 1),
		sessions: map[netip.Addr]*session{}, byMine: map[uint32]*session{}, listeners: map[listenerKey]*listener{}}
	prioritiseProcess(e.log)
	go e.run()
	return e
}

// Set makes the engine watch exactly these paths. Sessions that stay as they are do not notice; one whose timers change
// stays up. Errors are about single sessions, which are tried again by themselves.
func (e *Engine) Set(want []Session) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return errors.New("bfd engine is closed")
	}
	now := time.Now()
	keep := map[netip.Addr]bool{}
	var errs []error
	for _, w := range want {
		w.Remote, w.Local = w.Remote.Unmap(), w.Local.Unmap()
		if err := w.check(); err != nil {
			errs = append(errs, fmt.Errorf("bfd session with %s: %w", w.Remote, err))
			continue
		}
		keep[w.Remote] = true
		s := e.sessions[w.Remote]
		if s != nil && s.closingUntil.IsZero() && s.samePath(w) {
			if s.Session != w {
				s.Session = w
				s.configure(w.Transmit, w.Receive, w.Multiplier, now)
				s.gate.configure(w)
				e.schedule(s)
			}
		} else {
			if s != nil {
				e.drop(s)
			}
			s = e.add(w, now)
		}
		if s.err != nil {
			errs = append(errs, fmt.Errorf("bfd session with %s: %w", w.Remote, s.err))
		}
	}
	for addr, s := range e.sessions {
		if !keep[addr] && s.closingUntil.IsZero() {
			s.close(now)
			s.reason, s.since = "no longer wanted", now
			e.schedule(s)
		}
	}
	e.kick()
	return errors.Join(errs...)
}

func (e *Engine) add(w Session, now time.Time) *session {
	my := rand.Uint32()
	for my == 0 || e.byMine[my] != nil {
		my = rand.Uint32()
	}
	s := &session{Session: w, machine: newMachine(my, w.Transmit, w.Receive, w.Multiplier, now), gate: newGate(my, w),
		since: now, reason: "no packet has come yet", index: -1}
	e.sessions[w.Remote], e.byMine[my] = s, s
	e.gates.put(w.Remote, s.gate)
	e.open(s)
	e.schedule(s)
	return s
}

// open opens the sockets of a session; a failure is tried again after a while.
func (e *Engine) open(s *session) {
	if s.err = e.listen(s.Multihop, s.Remote.Is4()); s.err == nil && s.sock == nil {
		s.sock, s.err = openSocket(s.Session)
	}
}

// drop forgets a session without a word.
func (e *Engine) drop(s *session) {
	delete(e.sessions, s.Remote)
	delete(e.byMine, s.my)
	e.gates.remove(s.Remote)
	if s.index >= 0 {
		heap.Remove(&e.timers, s.index)
	}
	if s.sock != nil {
		s.sock.close()
	}
	e.closeIdleListeners()
}

// Close ends all sessions without a word.
func (e *Engine) Close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed = true
	for _, s := range e.sessions {
		e.drop(s)
	}
	e.kick()
}

// Session returns the status of the session with an address.
func (e *Engine) Session(remote netip.Addr) (Status, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.sessions[remote.Unmap()]
	if s == nil {
		return Status{}, false
	}
	return s.status(), true
}

func (s *session) status() Status {
	st := Status{Session: s.Session, State: s.state, Since: s.since, Reason: s.reason, RemoteState: s.remoteState,
		RemoteDiagnostic: s.remoteDiag,
		RemoteMultiplier: s.remoteMult, Independent: s.independent, Transmit: s.interval(), Downs: s.downs,
		LastUp: s.lastUp,
		Sent:   s.sent, Received: s.got, Confirmed: s.confirmed, Drops: s.gate.drops()}
	st.Drops.Unconfirmed = s.unconfirmed
	if s.receivedAny {
		st.Detection = s.detection()
	}
	if s.err != nil {
		st.Error = s.err.Error()
	}
	return st
}

// run does all due work as soon as it is due.
func (e *Engine) run() {
	prioritise(e.log)
	timer := time.NewTimer(time.Hour)
	for {
		e.mu.Lock()
		if e.closed {
			e.mu.Unlock()
			return
		}
		now := time.Now()
		for len(e.timers) > 0 && !now.Before(e.timers[0].at) {
			e.act(e.timers[0], now)
		}
		wait := time.Hour
		if len(e.timers) > 0 {
			wait = e.timers[0].at.Sub(now)
		}
		e.mu.Unlock()
		timer.Reset(wait)
		select {
		case <-timer.C:
		case <-e.wake:
		}
	}
}

// retryOpen is the interval between attempts to open sockets.
const retryOpen = 2 * time.Second

// act does the due work of one session.
func (e *Engine) act(s *session, now time.Time) {
	if s.machine.closed(now) {
		e.drop(s)
		return
	}
	if s.err != nil {
		if e.open(s); s.err != nil {
			s.nextSend = now.Add(retryOpen)
			e.schedule(s)
			return
		}
		e.log.Info("bfd session runs now", zap.Stringer("key", s.Remote))
	}
	if c := s.expire(now); c.from != c.to {
		e.changed(s, c, now)
	}
	if s.due(now) {
		e.send(s, false)
	}
	e.schedule(s)
}

func (e *Engine) send(s *session, final bool) {
	s.sent++
	if err := s.sock.send(s.packet(final).marshal()); err != nil {
		e.log.Debug("bfd packet is not sent", zap.Stringer("key", s.Remote), zap.Error(err))
	}
}

// changed records a transition and reports it.
func (e *Engine) changed(s *session, c change, now time.Time) {
	s.since = now
	failure := false
	switch {
	case c.to == Up:
		s.reason = "the remote answers"
	case c.to == Init:
		s.reason = "the remote is heard, it does not hear us yet"
		return
	case s.remoteState == AdminDown:
		s.reason = "the remote has switched it off"
	case s.diag == detectionTimeExpired:
		s.reason = fmt.Sprintf("no packet came for %s", s.detection())
		failure = c.from == Up
	case c.doubtful:
		s.reason = "the remote seems to have begun anew: its packets no longer name this session"
	case c.fresh:
		s.reason = "the remote has begun anew"
	default:
		s.reason = fmt.Sprintf("the remote says that it is down: %s", s.remoteDiag)
		failure = c.from == Up
	}
	if c.from == Up {
		s.downs++
	}
	e.log.Info("bfd session", zap.String("target", "bfd-session"), zap.Stringer("key", s.Remote),
		zap.Stringer("phase", s.state), zap.String("reason", s.reason))
	if e.cfg.OnEvent != nil && (c.from == Up || c.to == Up) {
		e.cfg.OnEvent(Event{Status: s.status(), From: c.from, Failure: failure, Doubtful: c.doubtful})
	}
}

// received passes a packet to its session (RFC 5880 section 6.8.6).
func (e *Engine) received(p packet, from netip.Addr, g *gate, now time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.sessions[from]
	if s == nil || s.gate != g || s.err != nil {
		return
	}
	s.got++
	before := s.nextSend
	c, answer := s.receive(p, now)
	if answer {
		e.send(s, true)
	}
	if c.from != c.to {
		e.changed(s, c, now)
	}
	e.schedule(s)
	if s.nextSend.Before(before) {
		e.kick()
	}
}

// schedule puts a session where it belongs in the queue.
func (e *Engine) schedule(s *session) {
	s.at = s.next()
	if s.index < 0 {
		heap.Push(&e.timers, s)
	} else {
		heap.Fix(&e.timers, s.index)
	}
}

func (e *Engine) kick() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// timers is a heap of sessions by when they are due.
type timers []*session

func (t timers) Len() int           { return len(t) }
func (t timers) Less(i, j int) bool { return t[i].at.Before(t[j].at) }
func (t timers) Swap(i, j int) {
	t[i], t[j] = t[j], t[i]
	t[i].index, t[j].index = i, j
}
func (t *timers) Push(x any) {
	s := x.(*session)
	s.index = len(*t)
	*t = append(*t, s)
}
func (t *timers) Pop() any {
	old := *t
	s := old[len(old)-1]
	*t = old[:len(old)-1]
	s.index = -1
	return s
}
