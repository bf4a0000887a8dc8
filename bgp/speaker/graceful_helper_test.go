package speaker

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"
)

// loss is one session that ends, and perhaps the next one. The peer announces P1 and P2 in the first and P1 in the
// next.
type loss struct {
	name    string
	earlier *gr // capability in a session before, nil: there was none
	had     gr  // capability in the session that is lost
	end     ending
	back    *gr // capability in the next session, nil: there is none
	marker  marker
	keep    keep
	rfc     string
}

// keep says when routes go.
type keep int

const (
	untilLoss        keep = iota
	untilReturn           // all
	untilEndOfRIB         // those that were not announced again; so on
	restartAfterBack      // the restart time of the new session
	restartAfterLoss      // the restart time of the lost session
)

func (k keep) words() string {
	return [...]string{"go at once", "stay until the new OPEN, and then go at once",
		"stay; P2 goes at the End-of-RIB", "stay; P2 goes one restart time after the return",
		"stay for one restart time, and then go"}[k]
}

// marker is the End-of-RIB of the next session.
type marker int

const (
	markerMissing marker = iota
	markerAtOnce
	markerLate
	markerTwice
)

func (m marker) words() string {
	return [...]string{"without End-of-RIB", "and End-of-RIB", "and a late End-of-RIB", "and End-of-RIB twice"}[m]
}

// ending ends a session.
type ending struct {
	words string
	end   func(*restartingPeer)
}

var (
	fin = ending{"closes the connection (FIN)", func(p *restartingPeer) { p.conn.Close() }}
	rst = ending{"resets the connection (RST)", func(p *restartingPeer) {
		conn := p.conn.(*prefixedConn).Conn.(*net.TCPConn)
		_ = conn.SetLinger(0)
		conn.Close()
	}}
	shutDownByPeer  = ending{"sends NOTIFICATION 6/2", notify(2)}
	hardResetByPeer = ending{"sends NOTIFICATION 6/9", notify(9)}
	silence         = ending{"falls silent until the hold timer of Manx ends the session", func(p *restartingPeer) {
		p.mu.Lock()
		p.silent = true
		p.mu.Unlock()
	}}
	nonsense = ending{"sends a malformed message, and Manx a NOTIFICATION", func(p *restartingPeer) {
		p.write(make([]byte, gobgp.BGP_HEADER_LENGTH))
	}}
	resetByUs = ending{"is reset by an administrator of Manx (6/4)", func(p *restartingPeer) {
		if err := p.lab.s.ResetSession(p.t().Context(), ip(p.addr), ResetHard); err != nil {
			p.t().Fatal(err)
		}
	}}
)

func notify(subcode uint8) func(*restartingPeer) {
	return func(p *restartingPeer) {
		p.send(gobgp.NewBGPNotificationMessage(gobgp.BGP_ERROR_CEASE, subcode, nil))
	}
}

// Capabilities of the rows.
var (
	noGR       = gr{absent: true}
	plain      = gr{}
	restarted  = gr{r: true, f: true}
	notifies   = gr{n: true}
	brief      = gr{hold: 3}
	briefN     = gr{n: true, hold: 3}
	otherAlone = gr{families: []gobgp.Family{gobgp.RF_IPv6_UC}}
	noFamily   = gr{families: []gobgp.Family{}}
)

const (
	helping       = "RFC 4724 section 4.2"
	notifications = "RFC 4724 section 4, RFC 8538 section 4"
	ordinary      = "RFC 4271 section 8.2.2"
)

var losses = []loss{
	// The capability of the next session.
	{name: "restarted", had: plain, end: fin, back: &restarted, marker: markerAtOnce, keep: untilEndOfRIB,
		rfc: helping},
	{name: "connection reset, restarted", had: plain, end: rst, back: &restarted, marker: markerAtOnce,
		keep: untilEndOfRIB, rfc: helping},
	{name: "restarted, N", had: notifies, end: fin, back: &gr{r: true, f: true, n: true}, marker: markerAtOnce,
		keep: untilEndOfRIB, rfc: helping},
	{name: "restarted, forwarding state lost", had: plain, end: fin, back: &gr{r: true}, marker: markerAtOnce,
		keep: untilReturn, rfc: helping},
	{name: "forwarding state of another family kept", had: plain, end: fin,
		back:   &gr{r: true, families: []gobgp.Family{gobgp.RF_IPv4_UC, gobgp.RF_IPv6_UC}, F: []bool{false, true}},
		marker: markerAtOnce, keep: untilReturn, rfc: helping},
	{name: "connection lost alone, as BIRD and GoBGP announce it", had: plain, end: fin, back: &plain,
		marker: markerAtOnce, keep: untilEndOfRIB, rfc: helping + ", but with R=0"},
	{name: "connection lost alone, F=1", had: plain, end: fin, back: &gr{f: true}, marker: markerAtOnce,
		keep: untilEndOfRIB, rfc: helping},
	{name: "back without GR", had: plain, end: fin, back: &noGR, keep: untilReturn, rfc: helping},
	{name: "back with another family", had: plain, end: fin,
		back: &gr{r: true, f: true, families: otherAlone.families}, keep: untilReturn, rfc: helping},
	{name: "back without a family", had: plain, end: fin, back: &noFamily, keep: untilReturn, rfc: helping},

	// End-of-RIB.
	{name: "restarted, no End-of-RIB", had: plain, end: fin, back: &gr{r: true, f: true, time: restartShort},
		marker: markerMissing, keep: restartAfterBack, rfc: helping},
	{name: "connection lost alone, no End-of-RIB", had: plain, end: fin, back: &gr{time: restartShort},
		marker: markerMissing, keep: restartAfterBack, rfc: helping},
	{name: "restarted, late End-of-RIB", had: plain, end: fin, back: &restarted, marker: markerLate,
		keep: untilEndOfRIB, rfc: helping},
	{name: "connection lost alone, late End-of-RIB", had: plain, end: fin, back: &plain, marker: markerLate,
		keep: untilEndOfRIB, rfc: helping},
	{name: "restarted, End-of-RIB twice", had: plain, end: fin, back: &restarted, marker: markerTwice,
		keep: untilEndOfRIB, rfc: helping},

	// The peer does not come back.
	{name: "never back", had: gr{time: restartShort}, end: fin, keep: restartAfterLoss, rfc: helping},
	{name: "never back, F=1", had: gr{r: true, f: true, time: restartShort}, end: rst, keep: restartAfterLoss,
		rfc: helping},
	{name: "restart time 0", had: gr{zero: true}, end: fin, keep: untilLoss, rfc: helping},

	// Only the session that is lost counts.
	{name: "no GR, closed", had: noGR, end: fin, keep: untilLoss, rfc: ordinary},
	{name: "no GR, reset", had: noGR, end: rst, keep: untilLoss, rfc: ordinary},
	{name: "another family, closed", had: otherAlone, end: fin, keep: untilLoss, rfc: helping},
	{name: "no family, closed", had: noFamily, end: fin, keep: untilLoss, rfc: "RFC 4724 sections 3 and 4.2"},
	{name: "GR in an earlier session alone", earlier: &plain, had: noGR, end: fin, keep: untilLoss, rfc: ordinary},
	{name: "our family in an earlier session alone", earlier: &plain, had: otherAlone, end: fin, keep: untilLoss,
		rfc: helping},

	// Ends that are no graceful restart. Manx never announces N, so N of the peer has no effect.
	{name: "shut down by the peer", had: plain, end: shutDownByPeer, keep: untilLoss, rfc: notifications},
	{name: "shut down by the peer, N", had: notifies, end: shutDownByPeer, keep: untilLoss, rfc: notifications},
	{name: "hard reset by the peer", had: plain, end: hardResetByPeer, keep: untilLoss, rfc: notifications},
	{name: "hard reset by the peer, N", had: notifies, end: hardResetByPeer, keep: untilLoss, rfc: notifications},
	{name: "hold timer", had: brief, end: silence, keep: untilLoss, rfc: notifications},
	{name: "hold timer, N", had: briefN, end: silence, keep: untilLoss, rfc: notifications},
	{name: "error of the peer", had: plain, end: nonsense, keep: untilLoss, rfc: notifications},
	{name: "error of the peer, N", had: notifies, end: nonsense, keep: untilLoss, rfc: notifications},
	{name: "reset here", had: plain, end: resetByUs, keep: untilLoss, rfc: notifications},
	{name: "reset here, N", had: notifies, end: resetByUs, keep: untilLoss, rfc: notifications},
}

// happens tells the row as a sentence.
func (c loss) happens() string {
	var b strings.Builder
	if c.earlier != nil {
		fmt.Fprintf(&b, "opens %s, closes the connection, ", c.earlier.words())
	}
	fmt.Fprintf(&b, "opens %s, %s", c.had.words(), c.end.words)
	switch {
	case c.back != nil:
		fmt.Fprintf(&b, ", opens %s", c.back.words())
		if c.keep != untilReturn {
			fmt.Fprintf(&b, ", sends P1 %s", c.marker.words())
		}
	case c.keep != untilLoss:
		b.WriteString(" and stays away")
	}
	return b.String()
}

func (c loss) run(t *testing.T) {
	p := helperLab(t)
	if c.earlier != nil {
		p.connect(*c.earlier)
		p.announce(p3)
		p.endOfRIB()
		p.lose(fin.end)
	}
	p.first(c.had)
	start := time.Now()
	p.lose(c.end.end)
	switch {
	case c.keep == untilLoss:
		p.lab.gone(soon, "with the session", p1, p2)
	case c.back == nil:
		p.lab.have("after the loss", p1, p2)
		p.lab.goneAfter(start, c.had.seconds(), p1, p2)
	default:
		p.lab.have("after the loss", p1, p2)
		c.comesBack(p)
	}
}

func (c loss) comesBack(p *restartingPeer) {
	start := time.Now()
	p.connect(*c.back)
	p.wantRestartBits(false)
	if !c.back.absent {
		p.await("our End-of-RIB", func() bool { return p.eor })
	}
	if c.keep == untilReturn {
		p.lab.gone(soon, "although the peer sends nothing", p1, p2)
		p.announce(p1)
		p.announce(p3)
		p.lab.have("after it was announced again", p1)
		return
	}
	p.lab.have("after the return", p1, p2)
	p.announce(p1, p3)
	switch c.marker {
	case markerMissing:
		p.lab.have("before the restart time was over", p2)
		p.lab.goneAfter(start, c.back.seconds(), p2)
	case markerLate:
		time.Sleep(3 * time.Second) // nothing may happen meanwhile
		fallthrough
	case markerAtOnce, markerTwice:
		p.lab.have("before the End-of-RIB", p1, p2)
		p.endOfRIB()
		p.lab.gone(soon, "with the End-of-RIB", p2)
	}
	if c.marker == markerTwice {
		p.endOfRIB()
	}
	p.announce(p4)
	p.lab.have("although it was announced again", p1, p3)
	if p.isClosed() {
		p.t().Error("the new session has ended")
	}
}

// repeatedLosses are rows with a story of their own.
var repeatedLosses = []gracefulCase{
	{"lost again before its End-of-RIB", "restarts (GR R=1 F=1), sends P1, closes the connection again before " +
		"End-of-RIB, restarts, sends P1 and End-of-RIB", "P2 goes at the second loss, P1 stays", helping,
		func(t *testing.T) {
			p := lostTwice(t, restartLong)
			p.connect(restarted)
			p.lab.have("after the second return", p1, p3)
			p.announce(p1, p4)
			p.endOfRIB()
			p.lab.gone(soon, "with the End-of-RIB", p3)
			p.lab.have("although it was announced again", p1, p4)
		}},
	{"lost again, then never back", "restarts (GR R=1 F=1), sends P1, closes the connection again and stays away",
		"P2 goes at the second loss, P1 one restart time after the second loss", helping,
		func(t *testing.T) {
			p := lostTwice(t, restartShort)
			p.lab.goneAfter(p.lab.lost, restartShort, p1, p3)
		}},
	{"lost again before its first route", "restarts (GR R=1 F=1) and closes the connection again without a route",
		"all go at the second loss", helping,
		func(t *testing.T) {
			p := helperLab(t)
			p.first(plain)
			p.lose(fin.end)
			p.connect(restarted)
			p.lab.have("after the return", p1, p2)
			p.lose(fin.end)
			p.lab.gone(soon, "with the second loss", p1, p2)
		}},
	{"lost again after its End-of-RIB", "restarts (GR R=1 F=1), sends P1 and End-of-RIB, closes the connection " +
		"again, restarts, sends End-of-RIB alone", "P2 goes at the first End-of-RIB, P1 at the second", helping,
		func(t *testing.T) {
			p := helperLab(t)
			p.first(plain)
			p.lose(fin.end)
			p.connect(restarted)
			p.announce(p1, p3)
			p.endOfRIB()
			p.lab.gone(soon, "with the End-of-RIB", p2)
			p.lose(fin.end)
			p.lab.have("after the second loss", p1, p3)
			p.connect(restarted)
			p.lab.have("after the second return", p1, p3)
			p.endOfRIB()
			p.lab.gone(soon, "with the second End-of-RIB", p1, p3)
		}},
	{"NOTIFICATION before its End-of-RIB", "restarts (GR R=1 F=1), sends P1, then NOTIFICATION 6/2 before End-of-RIB",
		"all go at once", "RFC 4724 section 4",
		func(t *testing.T) {
			p := helperLab(t)
			p.first(plain)
			p.lose(fin.end)
			p.connect(restarted)
			p.announce(p1, p3)
			p.lab.have("before the End-of-RIB", p1, p2)
			p.lose(shutDownByPeer.end)
			p.lab.gone(soon, "with the session", p1, p2, p3)
		}},
	{"lost during the OPEN exchange", "closes the connection, comes back, sends an OPEN (GR R=1 F=1) and no " +
		"KEEPALIVE, closes the connection and stays away", "stay for one restart time after the first loss", helping,
		func(t *testing.T) {
			const seconds = 10 // time for the attempt
			p := helperLab(t)
			p.first(gr{time: seconds})
			start := time.Now()
			p.lose(fin.end)
			conn := dialFrom(t, p.addr, listenOf(p.lab.d))
			put(conn, restarted.options().open())
			if _, err := readMessage(conn); err != nil {
				t.Fatalf("the speaker's OPEN: %v", err)
			}
			conn.Close()
			p.lab.have("after the attempt", p1, p2)
			p.lab.goneAfter(start, seconds, p1, p2)
		}},
	{"rebooted, with GR", "reboots without closing the connection, and connects again (GR R=1 F=1) while the old " +
		"session with GR is established", "stay: the new session replaces the old one; P2 goes at the End-of-RIB",
		"RFC 4724 section 5",
		func(t *testing.T) {
			p := rebooting(t, plain)
			old := p.fakePeer
			p.connect(restarted)
			old.awaitClosed()
			p.lab.have("after the return", p1, p2)
			p.announce(p1, p3)
			p.lab.have("before the End-of-RIB", p1, p2)
			p.endOfRIB()
			p.lab.gone(soon, "with the End-of-RIB", p2)
			p.lab.have("although it was announced again", p1)
		}},
	{"rebooted, GR in the old session alone", "the same, but the new OPEN has no GR",
		"go with the old session, which the new one replaces", "RFC 4724 sections 5 and 4.2",
		func(t *testing.T) {
			p := rebooting(t, plain)
			old := p.fakePeer
			p.connect(noGR)
			old.awaitClosed()
			p.lab.gone(soon, "although the peer sends nothing", p1, p2)
		}},
	{"rebooted, without GR", "connects again while its session without GR is established",
		"stay: the new connection is refused with Cease 6/7, the session goes on", "RFC 4271 section 6.8",
		func(t *testing.T) { rebooting(t, noGR).refused(noGR) }},
	{"rebooted, GR in the new OPEN alone", "connects again with GR R=1 F=1 while its session without GR is " +
		"established", "stay: the new connection is refused with Cease 6/7, the session goes on",
		"RFC 4724 section 5, RFC 4271 section 6.8",
		func(t *testing.T) { rebooting(t, noGR).refused(restarted) }},
	{"collision", "connects twice at once, with GR: the second connection begins less than 2 s after the session",
		"the second connection is refused with Cease 6/7, the session goes on", "RFC 4271 section 6.8",
		func(t *testing.T) {
			for range 10 { // a busy machine may take more than two seconds
				p := helperLab(t)
				start := time.Now()
				p.connect(plain)
				second := p.dial(plain)
				if time.Since(start) < 1500*time.Millisecond {
					p.wantRefused(second)
					p.announce(p1)
					return
				}
				second.conn.Close()
				p.conn.Close()
			}
			t.Fatal("no second connection began within 1.5 s after the first one")
		}},
	{"connection without an OPEN", "has a session with GR; another connection comes from its address and sends no OPEN",
		"stay: the session goes on", "RFC 4271 section 8.2.2",
		func(t *testing.T) {
			p := rebooting(t, plain)
			d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(p.addr)}, Timeout: soon}
			conn, err := d.Dial("tcp", listenOf(p.lab.d))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			time.Sleep(2 * time.Second) // nothing may happen meanwhile
			p.announce(p1, p3)
			p.lab.have("after the connection", p1, p2)
		}},
}

// lostTwice returns a peer that was lost, sent P1 and a new P3 but no End-of-RIB after its restart, and was lost again.
func lostTwice(t *testing.T, seconds uint16) *restartingPeer {
	t.Helper()
	p := helperLab(t)
	p.first(plain)
	p.lose(fin.end)
	p.connect(gr{r: true, f: true, time: seconds})
	p.announce(p1, p3)
	p.lab.have("before the second loss", p1, p2)
	p.lab.lost = time.Now()
	p.lose(fin.end)
	p.lab.gone(soon, "with the second loss", p2)
	p.lab.have("after the second loss", p1, p3)
	return p
}

// rebooting returns a peer whose session is old enough to be replaced.
func rebooting(t *testing.T, g gr) *restartingPeer {
	t.Helper()
	p := helperLab(t)
	p.first(g)
	time.Sleep(3 * time.Second) // an earlier connection is a collision
	return p
}

// refused connects once more, is refused, and continues with the old session.
func (p *restartingPeer) refused(g gr) {
	p.t().Helper()
	p.wantRefused(p.dial(g))
	p.announce(p1, p3)
	p.lab.have("after the second connection", p1, p2)
}

func (p *restartingPeer) wantRefused(second *fakePeer) {
	p.t().Helper()
	if n := second.awaitClosed(); n == nil || n.ErrorCode != gobgp.BGP_ERROR_CEASE ||
		n.ErrorSubcode != gobgp.BGP_ERROR_SUB_CONNECTION_COLLISION_RESOLUTION {
		p.t().Errorf("the second connection ended with %+v, want NOTIFICATION 6/7", n)
	}
}
