package speaker

import (
	"testing"
	"time"

	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"
)

const (
	restarting = "RFC 4724 section 4.1"
	// forever is longer than a test: deferrals that end earlier do not end because of it.
	forever = 10 * time.Minute
)

var ownRoute = pfx("10.244.0.0/26")

// ownRestarts are the cases in which Manx itself has restarted.
var ownRestarts = []gracefulCase{
	{"first OPEN", "A connects", "sends R=1, F=1, N=0, its restart time", "RFC 4724 section 3, RFC 8538 section 2",
		func(t *testing.T) {
			_, peers := newGracefulLab(t, Config{}, 1)
			peers[0].connect(plain)
			peers[0].wantRestartBits(true)
			if c := gracefulCapability(peers[0].open); c != nil && c.Time != 120 {
				t.Errorf("restart time %d s, want 120", c.Time)
			}
		}},
	{"the host has rebooted", "A connects, less than the restart time after it",
		"sends R=1, F=0; and R=0, F=1 after the restart", "RFC 4724 section 3",
		func(t *testing.T) {
			up := func() time.Duration { return time.Minute }
			l, peers := newGracefulLab(t, Config{RestartDeferral: forever, Forwarding: up}, 1)
			peers[0].connect(plain)
			if r, f := gracefulBits(peers[0].open); !r || f {
				t.Errorf("our OPEN has R=%t F=%t", r, f)
			}
			peers[0].endOfRIB()
			l.awaitSynced()
			peers[0].lose(fin.end)
			peers[0].connect(plain)
			peers[0].wantRestartBits(false)
		}},
	{"End-of-RIB waits for all peers", "A and B send End-of-RIB, one after the other",
		"sends its routes to both at once, and End-of-RIB after the second one", restarting,
		func(t *testing.T) {
			_, peers := newGracefulLab(t, Config{RestartDeferral: forever}, 2)
			for _, p := range peers {
				p.connect(plain)
				p.await("our route", p.hasOwnRoute)
			}
			peers[0].endOfRIB()
			peers[0].sentNoEndOfRIB()
			peers[1].endOfRIB()
			for _, p := range peers {
				p.awaitOwnRoute()
			}
		}},
	{"End-of-RIB without routes", "A sends End-of-RIB, Manx has no route", "sends End-of-RIB", restarting,
		func(t *testing.T) {
			l, peers := newGracefulLab(t, Config{RestartDeferral: forever}, 1)
			l.d.Originated = nil
			mustSet(t, l.s, l.d)
			peers[0].connect(plain)
			peers[0].endOfRIB()
			peers[0].await("our End-of-RIB", func() bool { return peers[0].eor })
		}},
	{"no End-of-RIB from one peer", "A sends End-of-RIB, B does not",
		"sends its routes to both at once, and End-of-RIB when B's time (10 s) is up", restarting,
		func(t *testing.T) {
			_, peers := newGracefulLab(t, Config{RestartDeferral: 5 * time.Second}, 2)
			for _, p := range peers {
				p.connect(plain)
			}
			peers[0].endOfRIB()
			peers[0].await("our route", peers[0].hasOwnRoute)
			peers[0].sentNoEndOfRIB()
			for _, p := range peers {
				p.awaitOwnRoute()
			}
		}},
	{"one peer is down", "A sends End-of-RIB, B is down",
		"sends its routes to A at once, and End-of-RIB after 10 s at most", restarting,
		func(t *testing.T) {
			_, peers := newGracefulLab(t, Config{RestartDeferral: 5 * time.Second, RestartWindow: forever}, 2)
			peers[0].connect(plain)
			peers[0].endOfRIB()
			peers[0].await("our route", peers[0].hasOwnRoute)
			peers[0].sentNoEndOfRIB()
			peers[0].awaitOwnRoute()
		}},
	{"one peer comes late", "A sends End-of-RIB, B connects before its time (120 s) is up",
		"sends R=1, F=1 to B, too", restarting,
		func(t *testing.T) {
			_, peers := newGracefulLab(t, Config{RestartDeferral: time.Second, RestartWindow: forever}, 2)
			peers[0].connect(plain)
			peers[0].endOfRIB()
			peers[0].awaitOwnRoute()
			peers[1].connect(plain)
			peers[1].wantRestartBits(true)
			peers[1].endOfRIB()
			peers[1].awaitOwnRoute()
		}},
	{"one peer comes too late", "A sends End-of-RIB, B connects when its time (120 s) is up", "sends R=0, F=1 to B",
		restarting,
		func(t *testing.T) {
			l, peers := newGracefulLab(t, Config{RestartDeferral: time.Second, RestartWindow: 4 * time.Second}, 2)
			peers[0].connect(plain)
			peers[0].endOfRIB()
			l.awaitSynced()
			peers[1].connect(plain)
			peers[1].wantRestartBits(false)
			peers[1].awaitOwnRoute()
		}},
	{"peer without GR", "A sends End-of-RIB, B has no GR", "sends its routes to both, and does not wait for B",
		restarting,
		func(t *testing.T) {
			_, peers := newGracefulLab(t, Config{RestartDeferral: forever}, 2)
			peers[0].connect(plain)
			peers[1].connect(noGR)
			peers[0].endOfRIB()
			peers[0].awaitOwnRoute()
			peers[1].await("our route", peers[1].hasOwnRoute)
		}},
	{"peers without GR alone", "A and B have no GR", "sends its routes", restarting,
		func(t *testing.T) {
			_, peers := newGracefulLab(t, Config{RestartDeferral: forever}, 2)
			for _, p := range peers {
				p.connect(noGR)
			}
			for _, p := range peers {
				p.await("our route", p.hasOwnRoute)
			}
		}},
	{"both ends have restarted", "A sends End-of-RIB, B opens with R=1 and sends none",
		"sends its routes to both, and does not wait for B", restarting,
		func(t *testing.T) {
			_, peers := newGracefulLab(t, Config{RestartDeferral: forever}, 2)
			peers[0].connect(plain)
			peers[1].connect(restarted)
			peers[0].endOfRIB()
			for _, p := range peers {
				p.awaitOwnRoute()
			}
		}},
	{"lost before the end of the restart", "A sends End-of-RIB, is lost and connects again; B has sent none",
		"sends R=1, F=1 again", restarting,
		func(t *testing.T) {
			_, peers := newGracefulLab(t, Config{RestartDeferral: forever}, 2)
			for _, p := range peers {
				p.connect(plain)
			}
			peers[0].endOfRIB()
			peers[0].sentNoEndOfRIB()
			peers[0].lose(fin.end)
			peers[0].connect(plain)
			peers[0].wantRestartBits(true)
		}},
	{"lost after the end of the restart", "A and B send End-of-RIB; both are lost and connect again",
		"sends R=0, F=1, its routes and End-of-RIB", "RFC 4724 sections 4.1 and 4.2",
		func(t *testing.T) {
			l, peers := newGracefulLab(t, Config{RestartDeferral: forever}, 2)
			for _, p := range peers {
				p.connect(plain)
				p.endOfRIB()
			}
			l.awaitSynced()
			for _, p := range peers {
				p.awaitOwnRoute()
				p.lose(fin.end)
				p.connect(plain)
				p.wantRestartBits(false)
				p.awaitOwnRoute()
			}
		}},
	{"lost when the time is up", "A sends no End-of-RIB, is lost when its time (10 s) is up, and connects again",
		"sends R=0, F=1, its routes and End-of-RIB", "RFC 4724 sections 4.1 and 4.2",
		func(t *testing.T) {
			l, peers := newGracefulLab(t, Config{RestartDeferral: 2 * time.Second}, 1)
			p := peers[0]
			p.connect(plain)
			l.awaitSynced()
			p.awaitOwnRoute()
			p.lose(fin.end)
			p.connect(plain)
			p.wantRestartBits(false)
			p.awaitOwnRoute()
		}},
	{"new peer", "C is configured when the restart is over", "sends R=0, F=1 to C, its routes and End-of-RIB",
		restarting,
		func(t *testing.T) {
			l, peers := newGracefulLab(t, Config{RestartDeferral: forever}, 1)
			peers[0].connect(plain)
			peers[0].endOfRIB()
			l.awaitSynced()
			c := &restartingPeer{lab: l, addr: uniqueLoopback(t)}
			l.d.Sessions = append(l.d.Sessions, passive(c.addr))
			mustSet(t, l.s, l.d)
			c.connect(plain)
			c.wantRestartBits(false)
			c.awaitOwnRoute()
		}},
}

func (p *restartingPeer) hasOwnRoute() bool { return p.routes[ownRoute] != nil }

// sentNoEndOfRIB fails if the speaker sends End-of-RIB before it may.
func (p *restartingPeer) sentNoEndOfRIB() {
	p.t().Helper()
	time.Sleep(2 * time.Second) // nothing may happen meanwhile
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.eor {
		p.t().Fatal("End-of-RIB came before the End-of-RIB of all peers")
	}
}

// awaitOwnRoute waits for the End-of-RIB, which comes after the speaker's route.
func (p *restartingPeer) awaitOwnRoute() {
	p.t().Helper()
	p.await("our route and End-of-RIB", func() bool { return p.eor && p.hasOwnRoute() })
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, m := range p.messages {
		u, ok := m.Body.(*gobgp.BGPUpdate)
		if !ok {
			continue
		}
		if eor, _ := u.IsEndOfRib(); eor {
			p.t().Errorf("End-of-RIB came before the route %s", ownRoute)
			return
		}
		for _, n := range u.NLRI {
			if n.NLRI.(*gobgp.IPAddrPrefix).Prefix == ownRoute {
				return
			}
		}
	}
}
