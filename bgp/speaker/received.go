package speaker

import (
	"errors"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/osrg/gobgp/v4/api"
	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"github.com/manxnet/manx/bgp/gobgppolicy"
)

// received has running facts about the routes in the Adj-RIB-In of one peer: how many there are at most and at least,
// and which are refused.
//
// Fault: GoBGP counts the routes of a peer by reading each of them, and its event about received routes leaves out
// those with our own AS in the path and costs 20 us for each UPDATE. So the speaker reads GoBGP's log entry for each
// UPDATE, at a cost below the noise of measurements (BenchmarkIngest), and has GoBGP count when a limit may have been
// passed. Shown by TestMaxPrefixesCountsWhatIsSent. Can go when GoBGP keeps the number of received routes.
type received struct {
	mu sync.Mutex // guards all but reported, which reporting guards

	counted              int    // by GoBGP, at some time
	announced, withdrawn int    // routes in UPDATEs since then; a route may be among them several times
	counting, pending    bool   // pending: it has to be done once more
	up                   bool   // the session
	session              uint64 // changes when the session comes up or goes down
	level                prefixLevel
	limit                limit
	count                func() // has them counted, and reports the level
	report               func() // reports the level, if it changed

	reporting sync.Mutex // one report at a time, and none of an older level after that of a newer one
	reported  levelOf

	reading  sync.Mutex // one goroutine at a time reads all routes
	rules    gobgppolicy.SessionRefusals
	outsider bool
	refused  map[routeKey]refusedRoute
	touched  map[routeKey]bool // changed while all routes are looked at; nil at other times
}

// The messages that GoBGP logs for each UPDATE before it takes it over, and when a session has come up or gone down;
// and the keys of their attributes.
const (
	updateMessage   = "received update"
	peerUpMessage   = "Peer Up"
	peerDownMessage = "Peer Down"

	keyNLRI, keyWithdrawals = "nlri", "withdrawals"
)

// readLog reads a log message of GoBGP and reports whether it was about an UPDATE.
func (x *received) readLog(rec slog.Record) bool {
	switch rec.Message {
	case updateMessage:
		x.update(rec)
		return true
	case peerUpMessage, peerDownMessage:
		x.begin(rec.Message == peerUpMessage)
	}
	return false
}

// begin forgets the routes of the session before. Those that are kept for a graceful restart are counted when the
// session is up again.
func (x *received) begin(up bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.session++
	x.up, x.counted, x.announced, x.withdrawn, x.refused, x.touched = up, 0, 0, 0, nil, nil
	if x.level != prefixesNormal {
		x.level = prefixesNormal
		go x.report()
	}
	if up {
		x.recount()
	}
}

func (x *received) update(rec slog.Record) {
	var announced, withdrawn, more, gone []gobgp.PathNLRI
	var nextHop netip.Addr
	rec.Attrs(func(a slog.Attr) bool {
		switch v := a.Value.Any().(type) {
		case []gobgp.PathNLRI:
			if a.Key == keyNLRI {
				announced = v
			} else if a.Key == keyWithdrawals {
				withdrawn = v
			}
		case []gobgp.PathAttributeInterface:
			more, gone, nextHop = reach(v)
		}
		return true
	})
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, list := range [][]gobgp.PathNLRI{withdrawn, gone} {
		x.withdrawn += len(list)
		for _, n := range list {
			x.note(n, netip.Addr{}, false)
		}
	}
	for _, list := range [][]gobgp.PathNLRI{announced, more} {
		x.announced += len(list)
		for _, n := range list {
			x.note(n, nextHop, true)
		}
	}
	if x.mayHavePassed() {
		x.recount()
	}
}

// reach finds the routes in attributes (RFC 4760) and the next hop.
func reach(attributes []gobgp.PathAttributeInterface) (announced, withdrawn []gobgp.PathNLRI, nextHop netip.Addr) {
	for _, a := range attributes {
		switch a := a.(type) {
		case *gobgp.PathAttributeNextHop:
			nextHop = a.Value
		case *gobgp.PathAttributeMpReachNLRI:
			announced, nextHop = a.Value, a.Nexthop
		case *gobgp.PathAttributeMpUnreachNLRI:
			withdrawn = a.Value
		}
	}
	return announced, withdrawn, nextHop
}

// mayHavePassed reports whether the number of routes may lie at another level than when they were counted last.
func (x *received) mayHavePassed() bool {
	switch most := x.counted + x.announced; {
	case x.limit.most == 0 || !x.up || x.level == prefixesTooMany: // the last is being acted upon
		return false
	case most > x.limit.most:
		return true
	case x.level == prefixesNormal:
		return most > x.limit.warn
	}
	return x.withdrawn > 0 && x.limit.level(x.counted-x.withdrawn, x.level) != x.level
}

// recount has the routes counted, once more if that is under way.
func (x *received) recount() {
	if x.pending = x.counting; !x.counting && x.limit.most != 0 {
		x.counting = true
		go x.count()
	}
}

// seen takes a number of routes that GoBGP gave for another purpose.
func (x *received) seen(n int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.up && x.limit.most != 0 && x.limit.level(n, x.level) != x.level {
		x.recount()
	}
}

// setLimit takes over a limit and reports whether it differs from the one before. The new one applies to the routes
// received so far.
func (x *received) setLimit(l limit) (changed bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.limit == l {
		return false
	}
	changed = x.limit.most != 0
	x.limit = l
	if x.up {
		x.level = prefixesNormal // until they are counted
		x.recount()
	}
	return changed
}

// countPause is how much longer than a count of all routes the time to the next one is at least: a peer close to its
// limit that announces the same again and again costs a tenth of the time at most.
const countPause = 10

// calmPause is how long no UPDATE comes when a burst is over; mostPauses bounds the wait for that.
const (
	calmPause  = 500 * time.Millisecond
	mostPauses = 10
)

// awaitCalm returns when a burst of UPDATEs is over, at once if the limit may have been passed. Only a warning depends
// on the count until then, and a count in the midst of a burst would have to be repeated behind it: to count 100,000
// routes again and again cost a twentieth of the processor time that it took to learn them.
func (x *received) awaitCalm(pause func()) {
	changes := func() (n int, urgent bool) {
		x.mu.Lock()
		defer x.mu.Unlock()
		return x.announced + x.withdrawn, !x.up || x.counted+x.announced > x.limit.most
	}
	before, urgent := changes()
	for range mostPauses {
		if urgent {
			return
		}
		pause()
		var now int
		if now, urgent = changes(); now == before {
			return
		}
		before = now
	}
}

// countReceived has GoBGP count the routes of a peer until no level can have been passed meanwhile.
func (s *Speaker) countReceived(peer netip.Addr, x *received) {
	for more := true; more; {
		x.awaitCalm(func() { time.Sleep(calmPause) })
		x.mu.Lock()
		announced, withdrawn, session := x.announced, x.withdrawn, x.session
		x.pending = false
		x.mu.Unlock()
		start := time.Now()
		n, err := s.countRoutes(peer)
		cost := time.Since(start)
		x.mu.Lock()
		if err == nil && x.up && x.session == session {
			x.counted, x.announced, x.withdrawn = n, x.announced-announced, x.withdrawn-withdrawn
			x.level = x.limit.level(n, x.level)
			x.mu.Unlock()
			x.report()
			time.Sleep(countPause * cost)
			x.mu.Lock()
		}
		more = x.up && (x.pending || x.mayHavePassed())
		x.counting = more
		x.mu.Unlock()
		if more && err != nil { // the server or the peer is being replaced
			time.Sleep(countRetry)
		}
	}
}

const countRetry = 100 * time.Millisecond

// countRoutes counts the routes in the Adj-RIB-In of a peer, including rejected ones; it reads all of them.
func (s *Speaker) countRoutes(peer netip.Addr) (int, error) {
	run := s.current()
	if run == nil || s.ctx.Err() != nil {
		return 0, errors.New("the BGP speaker is not running")
	}
	t, err := run.srv.GetTable(s.ctx, &api.GetTableRequest{TableType: api.TableType_TABLE_TYPE_ADJ_IN,
		Family: gobgpFamily(peer), Name: peer.String()})
	return int(t.GetNumPath()), err
}

// levelOf is a level together with the limit that it follows from.
type levelOf struct {
	level prefixLevel
	limit limit
}

// reportLevel updates the prefix level in the status of a peer, if it has changed. The warning comes before the limit,
// also when both were passed at once.
func (s *Speaker) reportLevel(peer netip.Addr, x *received) {
	x.reporting.Lock()
	defer x.reporting.Unlock()
	x.mu.Lock()
	was, is := x.reported, levelOf{x.level, x.limit}
	x.mu.Unlock()
	if is == was {
		return
	}
	x.reported = is
	if was.level == prefixesNormal && is.level == prefixesTooMany {
		s.prefixLevel(peer, prefixesMany, is.limit)
	}
	s.prefixLevel(peer, is.level, is.limit)
}

// reportLevelAgain follows the event that a session is up, which may come after its first routes: the status is new.
func (s *Speaker) reportLevelAgain(peer netip.Addr) {
	if tap := s.taps.of(peer); tap != nil {
		x := &tap.received
		x.reporting.Lock()
		x.reported = levelOf{}
		x.reporting.Unlock()
		s.reportLevel(peer, x)
	}
}
