package session

import (
	"time"

	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"
)

// state is the state of a session. GoBGP's state machine (RFC 4271 section 8.2.2) has the state of the connection; this
// one records its outcome, which GoBGP does not.
//
//	            established          fail             lost
//	fresh ----------------------> up -----> ending ---------> failed
//	  |                           ^  \                          ^ |
//	  | fail                      |   \ hold          lost      | |
//	  +---------> failed ---------+    +----> holding --> held -+ |
//	                  established                  release        |
//	fresh <-------------------------------------------------------+ reset: the speaker restarts
type state int

const (
	fresh   state = iota // configured; nothing has failed since
	up                   // established
	ending               // established, but the reason of its end is known: GoBGP's event follows
	failed               // tried in vain, or lost; tried again
	holding              // established, and being shut down for too many prefixes
	held                 // down for too many prefixes, until the time is over
)

// established reports whether GoBGP's session is established.
func (s state) established() bool { return s == up || s == ending || s == holding }

// heldDown reports whether the session is kept down for too many prefixes.
func (s state) heldDown() bool { return s == holding || s == held }

// onEstablished, onLost, onFailure, onHold, onRelease and onReset are the transitions.

func (s state) onEstablished() state {
	if s.heldDown() {
		return holding
	}
	return up
}

func (s state) onLost() state {
	if s.heldDown() {
		return held
	}
	return failed
}

func (s state) onFailure() state {
	switch s {
	case up:
		return ending
	case fresh:
		return failed
	}
	return s
}

func (s state) onHold() state {
	if s.established() {
		return holding
	}
	return held // GoBGP's event that it is established follows
}

func (s state) onRelease() state {
	switch s {
	case holding:
		return ending
	case held:
		return failed
	}
	return s
}

func (s state) onReset() state {
	if s.heldDown() {
		return held
	}
	return fresh
}

// explain is the one place that turns a state into a phase and its reason. It depends on its arguments only; fatal is
// why no session can run, empty if they can.
func explain(e *entry, fatal string) (Phase, string) {
	switch {
	case fatal != "":
		return PhaseFailed, fatal
	case e.refused != "":
		return PhaseRefused, e.refused
	}
	switch e.state {
	case up, ending, holding:
		return PhaseEstablished, establishedWords(e)
	case failed, held:
		return PhaseFailed, e.failure.words
	}
	if e.session.Passive {
		return PhaseWaiting, "waiting for " + e.session.Address.Unmap().String() + " to connect: this side is passive"
	}
	return PhaseConnecting, connectingWords(e)
}

// failure is the reason why a session did not come up, or was lost.
type failure struct {
	words string
	by    Direction
	at    time.Time
	cause bool // it explains later failures, and names the remedy
	// unreached: no TCP connection came about. unexplained: the wire has not reported the end yet. outdated: it does
	// not explain later failures, since the settings of one side are others now.
	unreached, unexplained, outdated bool
	cut                              time.Time // when BFD found the path broken, if that is the failure
}

// How long a failure explains a session better than later failures do.
const (
	// causeMatters is how long after it was last seen a cause explains better than a symptom why a session does not
	// come up. A cause that is a connection of the peer is seen each time that it connects: after 120 s where nothing
	// else is configured (RFC 4271 section 10).
	causeMatters = 3 * time.Minute
	// cutMatters is how long a broken path explains a session that is down better than later messages do.
	cutMatters = 10 * time.Second
	// notificationMatters is how long a NOTIFICATION explains better than a guess.
	notificationMatters = time.Minute
)

// hasFailure reports whether the failure belongs to this attempt and not to one before the session was last up.
func (e *entry) hasFailure() bool { return e.state != fresh && e.state != up }

// fail records why a session does not come up, or was lost.
func (e *entry) fail(by Direction, sentence string, now time.Time) {
	if e.state.heldDown() {
		return // the reason that holds the session down is the one that matters
	}
	if !e.failure.cut.IsZero() && now.Sub(e.failure.cut) < cutMatters {
		return // later errors follow from the broken path and explain less
	}
	e.failure = failure{words: sentence, by: by, at: now}
	e.state = e.state.onFailure()
}

// because records a cause of which the symptoms are that connections fail in this way and that.
func (e *entry) because(by Direction, sentence string, now time.Time) {
	e.fail(by, sentence, now)
	e.failure.cause = e.failure.words == sentence
}

// symptom records that no session came about, unless a cause is known.
func (e *entry) symptom(by Direction, sentence string, now time.Time) {
	if e.hasFailure() && e.failure.cause && now.Sub(e.failure.at) < causeMatters {
		return
	}
	e.fail(by, sentence, now)
}

// guess records why a session does not come up when the cause can only be guessed. A recent NOTIFICATION is better:
// many speakers close further connections silently, or refuse them, while they wait after an error.
func (e *entry) guess(by Direction, sentence string, now time.Time) {
	if e.hasFailure() && e.failure.by != DirectionLocal && !e.failure.outdated &&
		now.Sub(e.failure.at) < notificationMatters {
		return
	}
	e.symptom(by, sentence, now)
}

// breakPath records that BFD found the path broken, which explains the end of the session best.
func (e *entry) breakPath(sentence string, now time.Time) {
	e.fail(DirectionLocal, sentence, now)
	e.failure.cut = now
}

// hold keeps a session down after its end, and reports whether it was not held before.
func (e *entry) hold(sentence string, now, until time.Time) bool {
	if e.state.heldDown() {
		return false
	}
	e.heldSince, e.dialBy = now, until
	e.fail(DirectionSent, sentence, now)
	e.state = e.state.onHold()
	return true
}

// connection is the state of a session in RFC 4271 section 8.2.2: on the wire until it is established, then GoBGP's.
type connection struct {
	fsm   gobgp.FSMState
	since time.Time // of fsm
	upAt  time.Time // zero unless established
	// dialBy is when this side connects next; zero if it does not, or does so now.
	dialBy time.Time
}

// nextAttempt returns when this side connects next, zero if that is up to the peer or no attempt is expected.
func (e *entry) nextAttempt() time.Time {
	if e.shown.phase != PhaseFailed && e.shown.phase != PhaseConnecting || e.session.Passive && !e.state.heldDown() {
		return time.Time{}
	}
	return e.dialBy
}
