package bgp

import (
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/manxnet/manx/integration/e2e/world"
)

// hundred is the number of nodes of the large lab, the reflectors included; it takes about 5 GB of memory.
const (
	hundred       = 100
	hundredMemory = 8 << 30
)

// TestHundredNodes waits until a cluster of a hundred nodes has converged over two reflectors, and again without them.
func TestHundredNodes(t *testing.T) {
	if free := memoryAvailable(t); free < hundredMemory {
		t.Skipf("needs %d GB of free memory, has %d MB", hundredMemory>>30, free>>20)
	}
	id := [2]string{"10.0.0.1", "10.0.0.1"}
	x := newReflected(t, "h", hundred-2, [2]string{"manx", "manx"}, id)
	must(t, x.N1.Apply(meshOff))
	start := time.Now()
	x.start(t, append(x.workers[1:], x.r[:]...)...)
	t.Logf("%d daemons are ready after %.1f s", hundred, time.Since(start).Seconds())
	x.makeReflector(t, 0)
	x.makeReflector(t, 1)
	x.reflectedOnly(t)
	for i, w := range x.workers {
		x.claim(t, w.Name, hundredBlock(i, 0))
	}
	x.allLearned(t, 0)
	t.Logf("%d routes on each of %d nodes after %.1f s", len(x.workers)-1, len(x.workers), time.Since(start).Seconds())
	for i := range x.r {
		x.killReflector(i)
		for j, w := range x.workers[:10] {
			x.claim(t, w.Name, hundredBlock(j, i+1))
		}
		start = time.Now()
		x.allLearned(t, i+1)
		t.Logf("without %s: all routes stay, and new ones are everywhere after %.1f s", x.r[i].Name,
			time.Since(start).Seconds())
		x.restartReflector(t, i)
		x.reflectedOnly(t)
	}
	x.allLearned(t, 2)
}

// hundredBlock is the block that worker i claims in a round.
func hundredBlock(i, round int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, byte(i), byte(16 * round)}), 28)
}

// claim writes the objects of a node's IPAM for a block.
func (x *reflected) claim(t *testing.T, node string, block netip.Prefix) {
	t.Helper()
	path := strings.ReplaceAll(block.String(), "/", "-")
	_, err := x.Etcd.Put(t.Context(), "/calico/ipam/v2/host/"+node+"/ipv4/block/"+path,
		`{"state":"confirmed","deleted":false}`)
	must(t, err)
}

// allLearned waits until every worker has the routes of all rounds so far.
func (x *reflected) allLearned(t *testing.T, rounds int) {
	t.Helper()
	want := len(x.workers) + 10*rounds
	for i, w := range x.workers {
		mine := 1
		if i < 10 {
			mine += rounds
		}
		eventually(t, func() error {
			learned := 0
			for _, r := range world.Routes(t, w.Namespace, "-4", "proto", "12") {
				if r.Type != "blackhole" {
					learned++
				}
			}
			if learned != want-mine {
				return fmt.Errorf("%s has learned %d routes, want %d", w.Name, learned, want-mine)
			}
			return nil
		})
	}
}

func memoryAvailable(t *testing.T) int {
	t.Helper()
	b, err := os.ReadFile("/proc/meminfo")
	must(t, err)
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, "MemAvailable:"); ok {
			kb, err := strconv.Atoi(strings.Fields(rest)[0])
			must(t, err)
			return kb << 10
		}
	}
	return 0
}
