package property

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/manxnet/manx/dataplane/policy"
	"github.com/manxnet/manx/dataplane/ruleset"
	"github.com/manxnet/manx/datastore/codec"
	"github.com/manxnet/manx/datastore/model"
)

// route is the interface that leads to an address.
func route(a netip.Addr) string {
	for i := range localPods {
		if a == localAddress(i, a.Is6()) {
			return podInterface(i)
		}
	}
	return uplink
}

func isHost(a netip.Addr) bool { return a == hostAddress(a.Is6()) }

func evalHost() *ruleset.Host {
	return &ruleset.Host{
		IsLocal:         isHost,
		ReturnInterface: route,
		OwnsAddress:     func(iface string, a netip.Addr) bool { return iface == uplink && isHost(a) },
		SourceFor:       func(_ string, instead netip.Addr) netip.Addr { return hostAddress(instead.Is6()) },
	}
}

// packet is the first one of a random connection.
func (g *generator) packet() (path, ruleset.Packet) { return g.packetTo(5) }

// packetTo makes one of so many go to a floating address.
func (g *generator) packetTo(floating int) (path, ruleset.Packet) {
	v6 := g.one(2)
	p := ruleset.Packet{Protocol: pick(g, []uint8{6, 6, 17, 17, 132, 1, 253}), State: ruleset.ConnNew}
	if p.Protocol == 1 && v6 {
		p.Protocol = 58
	}
	switch p.Protocol {
	case 1:
		p.ICMPType, p.ICMPCode = pick(g, []uint8{8, 13}), uint8(g.IntN(2))
	case 58:
		p.ICMPType, p.ICMPCode = 128, uint8(g.IntN(2))
	case 6, 17, 132:
		p.SourcePort, p.DestinationPort = 1024+uint16(g.IntN(60000)), pick(g, numbers)
		if g.one(10) {
			p.SourcePort = pick(g, numbers)
		}
		if g.one(10) {
			p.DestinationPort = pick(g, []uint16{22, 179, 179, 68, 1, 300, 4789})
		}
	}
	away := func() netip.Addr {
		if g.one(2) {
			return remoteAddress(g.IntN(4), v6)
		}
		return outsideAddress(g.IntN(4), v6)
	}
	way := pick(g, []path{forward, forward, forward, input, output})
	if way == output {
		p.Source = hostAddress(v6)
	} else if p.In = uplink; !g.one(3) {
		i := g.IntN(localPods)
		p.In, p.Source = podInterface(i), localAddress(i, v6)
		if g.one(12) {
			p.Source = pick(g, []netip.Addr{localAddress(g.IntN(localPods), v6), away()})
		}
	} else {
		p.Source = away()
	}
	p.Destination = away()
	if way == input {
		p.Destination = hostAddress(v6)
	} else if !g.one(3) {
		p.Destination = localAddress(g.IntN(localPods), v6)
	}
	if way != input && floating > 0 && g.one(floating) {
		p.Destination = floatingAddress(g.IntN(4), v6)
	}
	if way != input {
		p.Out = route(p.Destination)
	}
	if p.In != "" && p.In == p.Out && p.In != uplink || p.Source == p.Destination {
		return g.packetTo(floating)
	}
	return way, p
}

// eval follows a packet, also where a floating address sends it.
func eval(t *ruleset.Table, way path, p ruleset.Packet, trace *ruleset.Trace) ruleset.Result {
	hooks := map[path][]ruleset.Hook{
		input: {ruleset.Prerouting, ruleset.Input}, forward: {ruleset.Prerouting, ruleset.Forward, ruleset.Postrouting},
		output: {ruleset.Output, ruleset.Postrouting},
	}[way]
	out := p.Out
	r := ruleset.Result{Action: ruleset.Accept, Packet: p}
	for _, hook := range hooks {
		if r = t.Eval(evalHost(), hook, r.Packet, trace); !r.Accepted() {
			break
		}
		if r.Packet.Destination != p.Destination {
			out = route(r.Packet.Destination)
		}
		r.Packet.In, r.Packet.Out = p.In, out
	}
	return r
}

// explain returns all facts about a packet.
func explain(t *ruleset.Table, way path, p ruleset.Packet) string {
	var trace ruleset.Trace
	result := eval(t, way, p, &trace)
	return fmt.Sprintf("%s %s:%d to %s:%d, protocol %d, ICMP %d/%d, from %q to %q\nEval: accepted %v\n%s", way,
		p.Source, p.SourcePort, p.Destination,
		p.DestinationPort, p.Protocol, p.ICMPType, p.ICMPCode, p.In, p.Out, result.Accepted(), &trace)
}

// removePolicies removes most policies, so that more is allowed.
func (g *generator) removePolicies(set model.Set) {
	for _, kind := range []model.Kind{model.KindNetworkPolicy, model.KindGlobalNetworkPolicy} {
		for o := range set.All(kind) {
			if !g.one(3) {
				delete(set, o.Key)
			}
		}
	}
}

// comparableWorld returns a world in which packets can be compared: it has most kinds of objects.
func (g *generator) comparableWorld() model.Set {
	g.noLimits = true
	set := g.world(20 + g.IntN(60))
	if g.one(2) {
		g.removePolicies(set)
	}
	if g.one(2) {
		k := model.ResourceKey(model.KindFelixConfiguration, "default")
		set[k] = g.object(k)
	}
	for i := range localPods {
		if !g.one(8) {
			k := model.Key{Kind: model.KindWorkloadEndpoint, Namespace: pick(g, namespaces), Name: podNames[i]}
			set[k] = g.object(k)
		}
	}
	for _, name := range profileNames[:2] {
		k := model.ResourceKey(model.KindProfile, name)
		set[k] = g.object(k)
	}
	return set
}

func TestEvalIsWhatCalicoDocuments(t *testing.T) {
	cases, accepted := 0, 0
	forEachSeed(t, 100, 6*time.Second, func(seed uint64) bool {
		g := newGenerator(seed)
		set := g.comparableWorld()
		calc := policy.Build(policy.Config{Node: thisNode}, set, hostLinks())
		reference := newReference(set, hostLinks())
		for range 50 {
			way, p := g.packetTo(0)
			if g.one(40) {
				if p.Protocol = 4; way == output && g.one(2) {
					p.Destination, p.Out = outsideAddress(0, false), uplink
					p.Source = hostAddress(false)
				}
			}
			cases++
			got, want := eval(calc.Table(), way, p, nil).Accepted(), reference.accepts(way, &p)
			if want {
				accepted++
			}
			if got != want {
				t.Errorf("seed %d: must be accepted: %v: %s\n%s", seed, want, explain(calc.Table(), way, p),
					objects(set))
				return false
			}
		}
		return true
	})
	t.Logf("%d packets, %d accepted", cases, accepted)
	if accepted < cases/20 || accepted > cases*19/20 {
		t.Errorf("%d of %d packets are accepted: that tests little", accepted, cases)
	}
}

// objects renders a world.
func objects(set model.Set) string {
	var list []string
	for k, o := range set {
		raw, err := codec.Encode(o)
		list = append(list, fmt.Sprint(k, ": ", string(raw), err))
	}
	slices.Sort(list)
	out := ""
	for _, line := range list {
		out += line + "\n"
	}
	return out
}
