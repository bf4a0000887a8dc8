package kernel

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/manxnet/manx/dataplane/kernel/device"
	"github.com/manxnet/manx/dataplane/kernel/nettest"
)

func TestEventsOfAFlappingInterface(t *testing.T) {
	with := Link{Index: 3, Name: "cali1", Up: true, Running: true}
	without := with
	without.Running = false
	down := Link{Index: 3, Name: "cali1"}
	other := Link{Index: 4, Name: "cali2", Up: true}
	link := func(l Link) Event { return Event{Type: EventLink, Link: l} }
	address := Event{Type: EventAddress, Address: Address{Link: 3}}
	gone := Event{Type: EventLinkGone, Link: with}
	repeat := func(n int, list ...Event) []Event { return slices.Repeat(list, n) }
	for name, c := range map[string]struct{ in, want []Event }{
		"one":       {[]Event{link(with)}, []Event{link(with)}},
		"once each": {repeat(1, link(without), link(with)), repeat(1, link(without), link(with))},
		"ends up":   {repeat(50, link(without), link(with)), repeat(1, link(without), link(with))},
		"ends down": {append(repeat(50, link(without), link(with)), link(without)),
			[]Event{link(without), link(with), link(without)}},
		"another moves":  {repeat(3, link(without), link(with), link(other)), nil},
		"administrative": {repeat(3, link(down), link(with)), repeat(3, link(down), link(with))},
		"with addresses": {repeat(3, link(without), link(with), address),
			repeat(3, link(without), link(with), address)},
		"comes again": {repeat(3, link(without), link(with), gone), repeat(3, link(without), link(with), gone)},
	} {
		var b eventBatch
		for _, e := range c.in {
			b.add(e)
		}
		have := b.take()
		if same := slices.EqualFunc(have, c.want, sameEvent); !same && c.want != nil {
			t.Errorf("%s: %d events, want %d", name, len(have), len(c.want))
		}
		last := map[int]Link{}
		for _, e := range have {
			last[e.Link.Index] = e.Link
		}
		if c.want == nil && (last[3] != with || last[4] != other) {
			t.Errorf("%s: the last states are %+v", name, last)
		}
		if rest := b.take(); len(rest) != 0 {
			t.Errorf("%s: %d events twice", name, len(rest))
		}
	}
}

func sameEvent(a, b Event) bool {
	return a.Type == b.Type && a.Link == b.Link && a.Address == b.Address
}

// Few batches are handled at once, more at the pace, and after a while again at once.
func TestBatchesArePaced(t *testing.T) {
	var p pacer
	now := time.Unix(1000, 0)
	for i := range prompt {
		if d := p.delay(now); d != 0 {
			t.Fatalf("batch %d waits for %s", i, d)
		}
	}
	start := now
	for range 100 {
		now = now.Add(p.delay(now))
	}
	if took := now.Sub(start); took != 100*pace {
		t.Errorf("100 more take %s", took)
	}
	if d := p.delay(now.Add(prompt * pace)); d != 0 {
		t.Errorf("a later one waits for %s", d)
	}
}

// A workload that takes its end down and up without pause causes a bounded number of batches, with few events, and the
// last state arrives.
func TestAFlappingInterfaceCausesFewBatches(t *testing.T) {
	ns, c := testNS(t)
	far := nettest.Namespace(t)
	// The kernel reports at once only interfaces whose other end has another index.
	nettest.Run(t, "ip", "-n", ns, "link", "add", "spare", "type", "veth", "peer", "name", "spare2")
	nettest.Run(t, "ip", "-n", ns, "link", "add", "cali1", "up", "type", "veth", "peer", "name", "eth0", "netns", far)
	nettest.Run(t, "ip", "-n", far, "link", "set", "eth0", "up")
	other, err := Open(nettest.Path(far))
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	index := linkIndex(t, other, "eth0")

	var mu sync.Mutex
	batches, events, last := 0, 0, Link{}
	ready := make(chan struct{}, 1)
	ctx, cancel := context.WithCancel(t.Context())
	var watching sync.WaitGroup
	watching.Go(func() {
		_ = c.Watch(ctx, func(list []Event) {
			mu.Lock()
			defer mu.Unlock()
			batches, events = batches+1, events+len(list)
			for _, e := range list {
				switch {
				case e.Type == EventResync:
					ready <- struct{}{}
				case e.Type == EventLink && e.Link.Name == "cali1":
					last = e.Link
				}
			}
		})
	})
	defer watching.Wait()
	defer cancel()
	<-ready
	const times = 4000
	start := time.Now()
	for i := range times {
		set := other.device.LinkSetDown
		if i%2 == 1 {
			set = other.device.LinkSetUp
		}
		if err := set(device.At(index)); err != nil {
			t.Fatal(err)
		}
	}
	for {
		mu.Lock()
		done, most := last.Running, prompt+int(time.Since(start)/pace)+2
		have, number := batches, events
		mu.Unlock()
		if have > most {
			t.Fatalf("%d batches in %s, want at most %d", have, time.Since(start), most)
		}
		if done {
			t.Logf("%d changes: %d batches, %d events", times, have, number)
			if number > 16*have {
				t.Errorf("%d events in %d batches", number, have)
			}
			return
		}
		if time.Since(start) > time.Minute {
			t.Fatalf("the last state does not arrive: %+v", last)
		}
		time.Sleep(time.Millisecond) // until the watcher has read it
	}
}
