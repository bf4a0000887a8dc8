package route

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/locrib"
)

// After any events, a follower of the changes has the existing rows.
func TestFollowersKnowAllRows(t *testing.T) {
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 4))
		f := testKernel()
		target, advance := testTarget(f)
		target.Synced(true)
		config := testConfig()
		changes, known, few := target.Follow(), map[place]Status{}, 0
		take := func(i int) {
			t.Helper()
			rows, all := target.Changed(changes)
			if all {
				clear(known)
			} else if len(rows) > 0 {
				few++
			}
			for _, row := range rows {
				known[place{row.Prefix, row.Table}] = row
				if row.Gone() {
					delete(known, place{row.Prefix, row.Table})
				}
			}
			statuses := target.Statuses()
			for _, want := range statuses {
				if got := known[place{want.Prefix, want.Table}]; !reflect.DeepEqual(got, want) {
					t.Fatalf("seed %d, step %d: the follower has %+v, want %+v", seed, i, got, want)
				}
			}
			if len(known) != len(statuses) {
				t.Fatalf("seed %d, step %d: the follower has %d rows, want %d", seed, i, len(known), len(statuses))
			}
		}
		hops := []string{"10.1.0.9", "10.2.0.9", "10.99.0.9", "10.3.0.9"}
		for i := range 60 {
			p := fmt.Sprintf("10.%d.2.%d/32", 244+r.IntN(3), r.IntN(3))
			switch r.IntN(8) {
			case 0, 1:
				target.Learn([]locrib.Route{learned(p, uint32(5+r.IntN(2)), hops[r.IntN(4)])})
			case 2:
				target.Learn([]locrib.Route{learned(p, 0)})
			case 3:
				config.Endpoints = append([]Endpoint(nil), testConfig().Endpoints...)
				for _, name := range []string{"cali1", "cali2", "caliold"}[:r.IntN(4)] {
					e := Endpoint{Name: "x/" + name, Interface: name, Addresses: prefixes(p)}
					config.Endpoints = append(config.Endpoints, e)
				}
				target.Configure(config)
			case 4:
				l := kernel.Link{Index: 3, Name: "eth1", Up: r.IntN(2) == 0, Running: true}
				f.PutLink(l)
				target.Handle([]kernel.Event{{Type: kernel.EventLink, Link: l}})
			case 5:
				f.Fail("ApplyRoutes", f.Calls("ApplyRoutes")+1+r.IntN(3), errors.New("no"))
			case 6:
				other := via(p, "10.1.0.77", 2, kernel.ProtocolBIRD)
				other.Metric = uint32(5 + r.IntN(3))
				f.PutRoute(other)
				target.Handle([]kernel.Event{{Type: kernel.EventRoute, Route: other}})
			case 7:
				target.SetStatic([]Static{staticTo(p, "10.1.0.3")}[:r.IntN(2)])
			}
			if r.IntN(3) > 0 {
				continue
			}
			target.forgotten(target.departed())
			advance(time.Duration(r.IntN(2000)) * time.Millisecond)
			_, _, _ = target.Flush()
			take(i)
		}
		target.Unfollow(changes)
		if len(target.table.followers) != 0 || seed == 0 && few == 0 {
			t.Fatalf("seed %d: changes are remembered for nobody, or never were few", seed)
		}
	}
}
