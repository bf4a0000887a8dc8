package speaker

import (
	"context"
	"errors"
	"math"
	"net/netip"
	"sync"
	"time"

	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/server"
	"go.uber.org/zap"

	"github.com/manxnet/manx/bgp"
	"github.com/manxnet/manx/bgp/fib"
	"github.com/manxnet/manx/bgp/session"
	"github.com/manxnet/manx/dataplane/locrib"
)

// Config holds the settings of a Speaker. Zero values select the defaults that are named beside the fields.
type Config struct {
	Logger *zap.Logger // none: nothing is logged

	// GobgpSocket is the path of a unix socket, mode 0600, where GoBGP's own v4 API is served for reading
	// (session resets are allowed too). Empty: not served.
	GobgpSocket string

	// BMP are the collectors that receive sessions and routes.
	BMP []BMP

	// RestartDeferral is how long the speaker waits, after a restart, for the routes of a peer that is up (RFC 4724
	// section 4.1, Selection_Deferral_Timer). Whole seconds; default 10 s.
	RestartDeferral time.Duration
	// RestartWindow is how long the speaker waits, after a restart, for peers that are not up before the kernel may be
	// pruned. Default 120 s: after the restart time that we announce, peers have dropped our routes anyway.
	RestartWindow time.Duration
	// ConnectRetry is the time between two attempts to connect (RFC 4271 section 8.2.1.3 suggests 120 s,
	// which is far too long for a rack switch that comes back). Whole seconds, default 3 s.
	ConnectRetry time.Duration

	// OpenTimeout limits the OPEN exchange; default 30 s. RFC 4271 suggests four minutes.
	OpenTimeout time.Duration

	// WarnPrefixes is the number of prefixes learned from one peer above which its status carries a warning; default
	// 50,000.
	WarnPrefixes int
	// MaxPrefixes is the number of prefixes learned from one peer above which the session is shut down for
	// PrefixHold; default 500,000, about 0.6 GB of memory. All that the peer announces counts, whether or not it is
	// accepted or the best; with ADD-PATH each path does.
	MaxPrefixes int
	// PrefixHold is how long a session stays down after it exceeded MaxPrefixes; default 5 minutes.
	PrefixHold time.Duration

	// InterfaceOf names the interface that traffic to a next hop leaves by, empty if there is none; it is called while
	// a filter has a rule about interfaces. Nil: such rules match no learned route.
	InterfaceOf func(nextHop netip.Addr) string

	// Uplink names the interface that a peer is directly connected to, empty if there is none: see UplinkDown. Nil: no
	// peer is.
	Uplink func(peer netip.Addr) string

	// Forwarding returns for how long the kernel has kept the routes of this host, at least: not over a reboot. Nil:
	// for ever.
	Forwarding func() time.Duration

	// Again is called when the speaker failed at work that Set had left for later, such as to add a session again: Set
	// is to be called again. It must not block. Nil: the next Set does the work.
	Again func()
}

func (c Config) withDefaults() Config {
	if c.Logger == nil {
		c.Logger = zap.NewNop()
	}
	setDefault(&c.RestartDeferral, 10*time.Second)
	setDefault(&c.RestartWindow, 120*time.Second)
	setDefault(&c.ConnectRetry, 3*time.Second)
	setDefault(&c.OpenTimeout, 30*time.Second)
	setDefault(&c.WarnPrefixes, 50_000)
	setDefault(&c.MaxPrefixes, 500_000)
	setDefault(&c.PrefixHold, 5*time.Minute)
	if c.Uplink == nil {
		c.Uplink = func(netip.Addr) string { return "" }
	}
	if c.Forwarding == nil {
		c.Forwarding = func() time.Duration { return math.MaxInt64 }
	}
	return c
}

func setDefault[T comparable](v *T, def T) {
	var zero T
	if *v == zero {
		*v = def
	}
}

// Speaker runs the sessions and originates the routes of a Desired on an embedded GoBGP server, and returns the routes
// of other speakers. GoBGP keeps some options in package variables, so a process should have one Speaker.
//
// No end of the process or of the Speaker sends a NOTIFICATION: peers with graceful restart keep our routes until the
// next start (RFC 4724), and a Cease would make them drop the routes at once.
//
// Lock order: Speaker.setMu, peerTap.adding, received.reading, readers.mu, taps.mu, conflicts.mu; then one of the
// others, under which none is taken.
type Speaker struct {
	cfg    Config
	log    *zap.Logger
	ctx    context.Context
	cancel context.CancelFunc

	fib    *fib.Table
	status *session.Table
	taps   taps
	sync   *restartSync

	conflicts  conflicts
	rejects    rejects
	reads      budget // of reading the counters of all sessions
	interfaces hopInterfaces
	paths      paths
	resets     resets

	// Resets limits the rate of soft resets through APIs.
	Resets ResetLimit

	setMu    sync.Mutex   // one change at a time
	refusals bgp.Refusals // of the last Set; guarded by setMu
	mu       sync.RWMutex
	run      *speakerRun // guarded by mu for readers; written under both
}

// New returns a speaker that does nothing until the first Set.
func New(cfg Config) *Speaker {
	cfg = cfg.withDefaults()
	ctx, cancel := context.WithCancel(context.Background())
	s := &Speaker{cfg: cfg, log: cfg.Logger, ctx: ctx, cancel: cancel, fib: fib.New()}
	s.interfaces.lookup = cfg.InterfaceOf
	s.status = session.NewTable(session.Config{Logger: cfg.Logger,
		PrefixHold: cfg.PrefixHold, Path: s.paths.status})
	s.sync = newRestartSync(cfg, s.syncFinished, s.deferralOver)
	go s.maintain()
	return s
}

// Set configures the speaker as d requires. It is idempotent and touches only the differences from the previous Set: an
// unchanged session costs two comparisons. A failure is reported, does not stop the rest of the work, and is tried
// again by the next Set. Only a change of d.Global restarts the whole speaker, gracefully if the peers can.
//
// The order of its steps counts (TestOrderOfSet):
//   - status.SetSessions: finds the differences, from which all others work
//   - setTaps: the data of each peer, which all others look up
//   - fib.Configure: before a server delivers a route
//   - restart: makes the server that all others change
//   - setLimits: compares with the sessions as they were
//   - setPaths: after a restart, BFD before BGP (withhold)
//   - setRefusals: before a session brings a route that is refused
//   - require: notes what differs
//   - set: policy, routes, sessions, in that order
//   - check: the routes that came before, once GoBGP has the policy
//   - setPaths: BFD of the sessions that there are now
//   - sync.tick: a node without peers is ready at once
func (s *Speaker) Set(ctx context.Context, d bgp.Desired) error {
	s.setMu.Lock()
	defer s.setMu.Unlock()
	if s.ctx.Err() != nil {
		return errors.New("bgp speaker is closed")
	}
	changed, gone := s.status.SetSessions(d.Sessions)
	s.setTaps(changed, gone)
	s.fib.Configure(d)

	if s.run == nil || !s.run.global.Equal(d.Global) {
		if err := s.restart(ctx, d); err != nil {
			s.status.SetFatal(err)
			return err
		}
		s.status.SetFatal(nil)
		changed, gone = d.Sessions, nil // the new server has no session
	}
	s.run.setLimits(changed)
	if s.run.restarting {
		s.setPaths(d.Sessions) // before BGP: see withhold
	}
	check := s.setRefusals(d, changed)
	s.run.require(changed, gone)
	err := s.run.set(ctx, d)
	check()
	s.setPaths(d.Sessions)
	s.sync.tick(time.Now()) // a node without peers is ready at once
	return err
}

// restart replaces the GoBGP server. Sessions of the old one are closed without NOTIFICATION towards peers that can
// restart gracefully, and learned routes stay in the table until the new server replaces them.
func (s *Speaker) restart(ctx context.Context, d bgp.Desired) error {
	if old := s.run; old != nil {
		s.log.Info("bgp speaker restarts because its AS, router ID or listener changes",
			zap.Uint32("as", d.Global.LocalAS), zap.Stringer("routerID", d.Global.RouterID))
		s.setRun(nil)
		old.stop(ctx)
		s.interfaces.stop()
		s.fib.MarkStale()
		s.status.Reset()
		s.resetTaps()
	}
	run, err := startRun(ctx, s, d.Global)
	if err != nil {
		return err
	}
	run.restarting = true
	s.sync.begin(d.Sessions)
	s.setRun(run)
	time.AfterFunc(s.cfg.RestartDeferral, run.settleYielding) // see comesFirst
	return nil
}

func (s *Speaker) setRun(run *speakerRun) {
	s.mu.Lock()
	s.run = run
	s.mu.Unlock()
}

func (s *Speaker) current() *speakerRun {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.run
}

// Changed receives after something changed that Take has not handed out yet, also when Synced changes.
func (s *Speaker) Changed() <-chan struct{} { return s.fib.Changed() }

// Take returns changed learned routes: see fib.Table.Take.
func (s *Speaker) Take(limit int) []locrib.Route { return s.fib.Take(limit) }

// Snapshot returns all prefixes with usable paths, in no order, and leaves Take alone.
func (s *Speaker) Snapshot() []locrib.Route { return s.fib.Snapshot() }

// Server returns the GoBGP server, nil before the first successful Set. Only the API in bgp/gobgpapi may use it, and
// only to read, and paths by Speaker.ListPath alone: the Speaker does not see changes made through it. A later Set may
// replace it.
func (s *Speaker) Server() *server.BgpServer {
	if run := s.current(); run != nil {
		return run.srv
	}
	return nil
}

// Answers returns when the GoBGP server has carried out a request that changes nothing, at once if there is no server.
// All requests, and all changes of sessions and routes, need the same lock, so it does not return if the server hangs.
func (s *Speaker) Answers() {
	if run := s.current(); run != nil {
		_, _ = run.srv.GetBgp(context.Background(), &api.GetBgpRequest{}) // a server that stops is no hang
	}
}

// Listening returns the port and the addresses on which peers can connect, in the form of GoBGP's API: -1 if they
// cannot. GoBGP's own listener is of no use (gobgpinside.Start).
func (s *Speaker) Listening() (port int32, addresses []string) {
	run := s.current()
	if run == nil || run.global.ListenPort == 0 {
		return -1, nil
	}
	for _, a := range listenAddresses(run.global) {
		addresses = append(addresses, a.Addr().String())
	}
	return int32(run.global.ListenPort), addresses
}

// Close stops watching. Sessions stay as they are until the process exits, which closes their connections without
// a NOTIFICATION, so that peers keep our routes over the restart.
func (s *Speaker) Close() {
	s.cancel()
	s.paths.close()
	if run := s.current(); run != nil {
		run.removeSocket()
	}
}

// maintain runs the timers of the speaker.
func (s *Speaker) maintain() {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case now := <-tick.C:
			s.sync.tick(now)
			s.release(now)
			s.status.Expire(now)
			s.offerWithheld()
			s.warnOfPaths(now)
			s.refreshHops(now)
		}
	}
}

func (s *Speaker) syncFinished(reason string) {
	s.log.Info("bgp restart finished", zap.String("reason", reason))
	s.fib.SweepStale()
}

// deferralOver announces the routes that yield, and has the End-of-RIBs sent that were held back: a peer would remove
// what comes later.
func (s *Speaker) deferralOver() {
	if run := s.current(); run != nil {
		go func() { // Set may be the caller
			run.settleYielding()
			run.gate.EndDeferral()
		}()
	}
}
