package uplinks

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/manxnet/manx/integration/e2e/world"
	"github.com/manxnet/manx/integration/namespace"
)

// every is the interval between two packets of a flow.
const every = 20 * time.Millisecond

// flow is a stream of UDP packets in one direction.
type flow struct {
	name  string
	sent  []time.Time // of each packet
	lost  []bool      // until it is received
	send  func([]byte) error
	start time.Duration
}

// traffic is many flows between pods of different hosts, and between pods and the outside in both directions. A flow
// uses one uplink of its sender, chosen by its addresses.
type traffic struct {
	mu    sync.Mutex
	flows []*flow
}

const port = 7000

// startTraffic has the flows run until the test ends.
func (f *fabric) startTraffic(t *testing.T) *traffic {
	t.Helper()
	x := &traffic{}
	sockets := map[string]*net.UDPConn{}
	socket := func(ns string, at netip.Addr) *net.UDPConn {
		key := ns + " " + at.String()
		if sockets[key] == nil {
			var err error
			world.Must(t, namespace.Inside(ns, func() {
				sockets[key], err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(at, port)))
			}))
			world.Must(t, err)
			go x.receive(sockets[key])
			t.Cleanup(func() { _ = sockets[key].Close() })
		}
		return sockets[key]
	}
	add := func(name, from string, source netip.Addr, to string, target netip.Addr) {
		s := socket(from, source)
		socket(to, target)
		x.flows = append(x.flows, &flow{name: name, start: time.Duration(len(x.flows)) * every / 40,
			send: func(b []byte) error {
				_, err := s.WriteToUDPAddrPort(b, netip.AddrPortFrom(target, port))
				return err
			}})
	}
	for _, n := range f.hosts {
		for _, p := range f.pods[n] {
			for _, a := range outside {
				add(fmt.Sprintf("outside %s to %s", a, p.Name), f.spine.namespace, a, p.Namespace, p.IP4())
				add(fmt.Sprintf("%s to outside %s", p.Name, a), p.Namespace, p.IP4(), f.spine.namespace, a)
			}
			for _, o := range f.hosts {
				for _, q := range f.pods[o] {
					if o != n {
						add(p.Name+" to "+q.Name, p.Namespace, p.IP4(), q.Namespace, q.IP4())
					}
				}
			}
		}
	}
	stop := make(chan struct{})
	var senders sync.WaitGroup
	for i, one := range x.flows {
		senders.Go(func() { x.run(i, one, stop) })
	}
	t.Cleanup(func() { close(stop); senders.Wait() })
	return x
}

// run sends a flow's packets: the number of the flow, then that of the packet.
func (x *traffic) run(i int, f *flow, stop <-chan struct{}) {
	time.Sleep(f.start) // so that flows do not send all at once
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return
		case <-tick.C:
		}
		x.mu.Lock()
		number := len(f.sent)
		f.sent, f.lost = append(f.sent, time.Now()), append(f.lost, true)
		x.mu.Unlock()
		b := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, uint32(i)), uint32(number))
		_ = f.send(b) // what cannot be sent, for want of a route, is lost
	}
}

func (x *traffic) receive(s *net.UDPConn) {
	b := make([]byte, 64)
	for {
		n, _, err := s.ReadFromUDPAddrPort(b)
		if err != nil {
			return
		}
		if n != 8 {
			continue
		}
		x.mu.Lock()
		x.flows[binary.BigEndian.Uint32(b)].lost[binary.BigEndian.Uint32(b[4:])] = false
		x.mu.Unlock()
	}
}

// loss is what some time has cost.
type loss struct {
	packets, flows int           // flows that have lost a packet
	longest        time.Duration // the longest pause of a flow
	where          string        // the flow with it
}

// lost returns the loss of the packets that were sent in a time, which is over.
func (x *traffic) lost(from, to time.Time) (l loss) {
	// packets that are on their way arrive meanwhile
	time.Sleep(200 * time.Millisecond)
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, f := range x.flows {
		run, any := 0, false
		for i, at := range f.sent {
			if at.Before(from) || at.After(to) {
				continue
			}
			if !f.lost[i] {
				run = 0
				continue
			}
			l.packets++
			run, any = run+1, true
			if d := time.Duration(run) * every; d > l.longest {
				l.longest, l.where = d, f.name
			}
		}
		if any {
			l.flows++
		}
	}
	return l
}

func (l loss) String() string {
	return fmt.Sprintf("%d packets of %d flows lost, %.2f s at most (%s)", l.packets, l.flows, l.longest.Seconds(),
		l.where)
}
