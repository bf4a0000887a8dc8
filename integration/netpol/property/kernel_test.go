package property

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/manxnet/manx/dataplane/kernel/nftables"
	"github.com/manxnet/manx/dataplane/policy"
	"github.com/manxnet/manx/dataplane/ruleset"
	"github.com/manxnet/manx/datastore/model"
)

const (
	rounds  = 3   // of each world, with a few changes between
	packets = 200 // of each round
)

// TestKernelIsWhatEvalSays sends packets through a kernel that has the rules of random worlds: it delivers those that
// Eval accepts, and no others. It tries for 25 seconds; see each for more.
func TestKernelIsWhatEvalSays(t *testing.T) {
	n := newNode(t)
	tried := tally{}
	forEachSeed(t, 30, 25*time.Second, func(seed uint64) bool {
		g := newGenerator(seed)
		set := g.comparableWorld()
		calc := policy.Build(g.config(), set, hostLinks())
		n.target.Resync() // the table is another one than before
		for round := range rounds {
			if round > 0 {
				calc.Update(set, g.change(set)...)
			}
			result, _ := n.target.Flush(calc.Table())
			if errors.Is(result.Err, nftables.ErrMissing) {
				t.Skip(result.Err)
			}
			if result.Err != nil || result.Refused != 0 {
				t.Errorf("seed %d, round %d: the kernel does not take the rules: %+v, %+v", seed, round, result,
					n.target.Status())
				return false
			}
			wrong, err := n.compare(g, calc.Table(), tried)
			if err != nil {
				t.Fatal(err)
			}
			for i, text := range wrong {
				if i < 3 {
					t.Errorf("seed %d, round %d: %s", seed, round, text)
				}
			}
			if t.Failed() {
				t.Logf("seed %d, round %d: %d of %d packets; objects:\n%s", seed, round, len(wrong), packets,
					objects(set))
				return false
			}
		}
		return true
	})
	t.Logf("packets: %v", tried)
	for _, what := range []string{"forward dropped", "input dropped", "output dropped", "forward delivered",
		"input delivered", "output delivered",
		"forward to another address", "output to another address", "from another address"} {
		if !t.Failed() && os.Getenv("MANX_PROPERTY_SEED") == "" && tried[what] == 0 {
			t.Errorf("none of the packets was %q", what)
		}
	}
}

// tally counts the fates of packets.
type tally map[string]int

func (c tally) count(way path, p *ruleset.Packet, r ruleset.Result) {
	if !r.Accepted() {
		c[string(way)+" dropped"]++
		return
	}
	c[string(way)+" delivered"]++
	if r.Packet.Destination != p.Destination {
		c[string(way)+" to another address"]++
	}
	if r.Packet.Source != p.Source {
		c["from another address"]++
	}
}

// change creates, updates and deletes some objects.
func (g *generator) change(set model.Set) []model.Key {
	keys := map[model.Key]bool{}
	for range 1 + g.IntN(10) {
		k := g.key()
		if keys[k] = true; set[k] != nil && g.one(3) {
			delete(set, k)
		} else {
			set[k] = g.object(k)
		}
	}
	list := slices.Collect(maps.Keys(keys))
	slices.SortFunc(list, func(a, b model.Key) int { return strings.Compare(a.String(), b.String()) })
	g.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	return list
}

// flow is the identity of a connection.
type flow struct {
	ends     string
	protocol uint8
	ports    [2]uint16
}

func flowOf(p *ruleset.Packet, back bool) flow {
	a, b, x, y := p.Source, p.Destination, p.SourcePort, p.DestinationPort
	if back {
		a, b, x, y = b, a, y, x
	}
	return flow{a.String() + " " + b.String(), p.Protocol, [2]uint16{x, y}}
}

// collides reports whether a packet belongs to a connection that is used, before or after its translation, and notes
// both. ICMP has an identifier, which is the packet's number.
func collides(used map[flow]bool, before, after *ruleset.Packet) bool {
	if before.Protocol == 1 || before.Protocol == 58 {
		return false
	}
	list := []flow{flowOf(before, false), flowOf(before, true), flowOf(after, false), flowOf(after, true)}
	if slices.ContainsFunc(list, func(f flow) bool { return used[f] }) {
		return true
	}
	for _, f := range list {
		used[f] = true
	}
	return false
}

// compare sends packets of connections that have nothing to do with each other, and explains those that fare otherwise
// than they should.
func (n *node) compare(g *generator, table *ruleset.Table, tried tally) (wrong []string, err error) {
	if err := n.flushConnections(); err != nil {
		return nil, fmt.Errorf("forget connections: %w", err)
	}
	n.first += packets
	var sent []*ruleset.Packet
	var ways []path
	var want []ruleset.Result
	used := map[flow]bool{}
	waiting := map[uint32]bool{}
	for len(sent) < packets {
		way, p := g.packet()
		result := eval(table, way, p, nil)
		if collides(used, &p, &result.Packet) {
			continue
		}
		if number := uint32(len(sent)); result.Accepted() {
			waiting[number] = true
		}
		sent, ways, want = append(sent, &p), append(ways, way), append(want, result)
	}
	got := map[uint32]place{}
	for number, p := range sent {
		if err := n.emit(p, n.first+uint32(number)); err != nil {
			return nil, fmt.Errorf("send %+v: %w", *p, err)
		}
	}
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if err := n.receiveAll(sent, got); err != nil {
			return nil, err
		}
		if maps.DeleteFunc(waiting, func(number uint32, _ bool) bool {
			_, ok := got[number]
			return ok
		}); len(waiting) == 0 {
			break
		}
	}
	time.Sleep(20 * time.Millisecond) // for a packet that should not come
	if err := n.receiveAll(sent, got); err != nil {
		return nil, err
	}
	for number, p := range sent {
		there, came := got[uint32(number)]
		tried.count(ways[number], p, want[number])
		switch {
		case came != want[number].Accepted():
			wrong = append(wrong, fmt.Sprintf("delivered %v: %s", came, explain(table, ways[number], *p)))
		case came && (there.iface != want[number].Packet.Out || there.source != want[number].Packet.Source):
			wrong = append(wrong, fmt.Sprintf("delivered to %q from %s, want %q from %s: %s", there.iface, there.source,
				want[number].Packet.Out, want[number].Packet.Source, explain(table, ways[number], *p)))
		}
	}
	return wrong, nil
}
