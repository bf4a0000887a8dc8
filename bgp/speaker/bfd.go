package speaker

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"
	"go.uber.org/zap"

	"github.com/manxnet/manx/bgp"
	"github.com/manxnet/manx/bgp/bfd"
	"github.com/manxnet/manx/bgp/wire"
	"github.com/manxnet/manx/bgp/wire/message"
)

// paths monitors the paths to peers by BFD, as soon as a session requires it.
type paths struct {
	mu      sync.Mutex
	engine  *bfd.Engine
	want    []bfd.Session
	failure string // of the last configuration, as logged
}

// setPaths makes BFD monitor the paths of these sessions. A failure is reported in the status of BFD and tried again:
// it is no reason to be without BGP.
func (s *Speaker) setPaths(sessions []bgp.Session) {
	var want []bfd.Session
	for i := range sessions {
		if b := &sessions[i]; b.BFD.Enabled {
			want = append(want, bfd.Session{Remote: b.Address.Unmap(), Local: b.Source, Multihop: b.BFD.Multihop,
				Transmit: b.BFD.Transmit, Receive: b.BFD.Receive, Multiplier: b.BFD.Multiplier, MinTTL: b.BFD.MinTTL})
		}
	}
	s.paths.mu.Lock()
	defer s.paths.mu.Unlock()
	if s.paths.engine == nil {
		if len(want) == 0 {
			return
		}
		s.paths.engine = bfd.New(bfd.Config{Logger: s.log, OnEvent: func(e bfd.Event) { go s.pathChanged(e) }})
	}
	if s.paths.failure == "" && slices.Equal(want, s.paths.want) {
		return
	}
	s.paths.want = want
	failure := ""
	if err := s.paths.engine.Set(want); err != nil {
		failure = err.Error()
	}
	if failure != s.paths.failure && failure != "" {
		s.log.Warn("bfd is not as it should be, trying again", zap.String("error", failure))
	}
	s.paths.failure = failure
}

func (p *paths) status(addr netip.Addr) (bfd.Status, bool) {
	p.mu.Lock()
	engine := p.engine
	p.mu.Unlock()
	if engine == nil {
		return bfd.Status{}, false
	}
	return engine.Session(addr)
}

func (p *paths) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.engine != nil {
		p.engine.Close()
	}
}

// pathChanged acts on a path that broke: the session ends at once, and with it the peer's routes.
//
// A peer that restarts goes down in BFD too, since its BFD does not outlive it (C bit clear). But its kernel closes the
// BGP connection before BFD can notice, so that the session is not established any more, its routes are kept (RFC 4724)
// and there is nothing to do here. A path that breaks, or a host that dies, closes nothing. So graceful restart and
// fast detection go together, although RFC 5882 section 4.3 could only advise to give one of them up.
//
// A peer that restarts may be back in BGP before BFD has noticed that it was away. So a failure counts at once only if
// packets came on the path since the session is up: it must be older than the detection time, twice for a busy machine.
// BIRD begins its BFD session anew with each BGP session. Silence that began before the session was up may be that; if
// BFD is not back soon, it is none. The same goes for a remote that only seems to have begun anew: on a path that
// broke, another host may have forged that.
func (s *Speaker) pathChanged(e bfd.Event) {
	addr, path := e.Status.Session.Remote, e.Status
	s.offerWithheld()
	up := s.status.PathChanged(addr)
	switch {
	case !e.Failure && !e.Doubtful || up.IsZero():
	case e.Failure && path.LastUp.After(up.Add(2*path.Detection)):
		s.endPath(addr, up, path.Reason)
	default:
		time.AfterFunc(max(newSessionTime, 2*path.Detection), func() {
			now, ok := s.paths.status(addr)
			off := now.RemoteState == bfd.AdminDown && (now.Confirmed || !e.Doubtful)
			if ok && now.State != bfd.Up && !off {
				s.endPath(addr, up, path.Reason)
			}
		})
	}
}

// newSessionTime is how long a BFD session takes to come up, at the slow rate of RFC 5880 section 6.8.3.
const newSessionTime = 3 * time.Second

// endPath ends the session that is up since then.
func (s *Speaker) endPath(addr netip.Addr, up time.Time, reason string) {
	if run := s.current(); run != nil && s.status.BreakPath(addr, up, "BFD", reason) {
		s.log.Warn("bgp session ends because BFD found its path broken", zap.Stringer("peer", addr))
		run.gate.End(addr, message.Cease(message.SubBFDDown), wire.CauseLocal)
	}
}

// pathPatience is how long a session may be established without BFD before there is a warning.
const pathPatience = 15 * time.Second

// warnOfPaths adds a warning to the sessions for which BFD has not come up.
func (s *Speaker) warnOfPaths(now time.Time) {
	for addr := range s.taps.all() {
		text, up := "", s.status.EstablishedSince(addr)
		path, watched := s.paths.status(addr)
		if watched && !up.IsZero() && now.Sub(up) > pathPatience && path.State != bfd.Up && path.LastUp.Before(up) {
			text = fmt.Sprintf("BFD (%s) has not come up since the session has: %s; the peer's routes stay until the "+
				"hold timer expires if the path breaks", path.Session.Kind(), cmp.Or(path.Error, path.Reason))
		}
		s.status.PathMissing(addr, text)
	}
}

// pathFirst is how long a session waits after a restart until BFD has its path up.
const pathFirst = 2 * time.Second

// withhold reports whether a session that GoBGP is ready for has to wait for its path. After a restart the peer's BFD
// session, which outlived ours, goes down and up when our BFD begins anew. If that came after BGP is up again, a router
// would take it for a second loss, and drop our routes (RFC 4724 section 4.2).
func (s *Speaker) withhold(addr netip.Addr, state gobgp.FSMState) bool {
	tap := s.taps.of(addr)
	if tap == nil {
		return false
	}
	wait := state == gobgp.BGP_FSM_ACTIVE && !s.pathAllows(addr, tap)
	tap.withheld.Store(wait)
	return wait
}

func (s *Speaker) pathAllows(addr netip.Addr, tap *peerTap) bool {
	path, watched := s.paths.status(addr)
	return !watched || path.State == bfd.Up || !tap.restarting.Load() || s.sync.since(time.Now()) > pathFirst
}

// offerWithheld lets sessions come up whose path is up, or whose wait is over.
func (s *Speaker) offerWithheld() {
	run := s.current()
	if run == nil {
		return
	}
	for addr, tap := range s.taps.all() {
		if tap.withheld.Load() && s.pathAllows(addr, tap) && tap.withheld.CompareAndSwap(true, false) {
			run.gate.Ready(addr, true)
		}
	}
}
