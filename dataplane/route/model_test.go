package route

import (
	"maps"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/reconcile"
)

// routeStore is a kernel that accepts every route, for a reconcile.Table or a table of rows.
type routeStore map[kernel.RouteKey]kernel.Route

func (s routeStore) ListRoutes(...kernel.Table) ([]kernel.Route, error) {
	var list []kernel.Route
	for _, r := range s {
		list = append(list, r)
	}
	return list, nil
}

func (s routeStore) ApplyRoutes(ops []kernel.RouteOp) []error {
	for _, op := range ops {
		if s[op.Route.Key()] = op.Route; op.Verb == kernel.DeleteRoute {
			delete(s, op.Route.Key())
		}
	}
	return nil
}

func (s routeStore) List() (map[kernel.RouteKey]*kernel.Route, error) {
	all := map[kernel.RouteKey]*kernel.Route{}
	for k, r := range s {
		all[k] = &r
	}
	return all, nil
}

func (s routeStore) Apply(steps []reconcile.Step[kernel.RouteKey, *kernel.Route]) []error {
	for _, st := range steps {
		if st.Action == reconcile.Remove {
			delete(s, st.Key)
		} else {
			s[st.Key] = *st.New
		}
	}
	return nil
}

// After any events, routes of few prefixes with several metrics and in several tables have the same state as in a
// reconcile.Table, and no row is left behind.
func TestTableDoesAsAReconciledTable(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 3))
		now := func() time.Time { return time.Unix(1000, 0) }
		want, have := routeStore{}, routeStore{}
		equal := func(a, b *kernel.Route) bool { return a == b || a.Equal(*b) }
		model := reconcile.NewTable(want, equal, now, reconcile.DefaultBackoff)
		under := &kernelTarget{kernel: have, rules: &rules{underlay: newUnderlay()}}
		rows := newTable(under, now, reconcile.DefaultBackoff)
		some := func() *kernel.Route {
			return &kernel.Route{Dst: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(r.IntN(3))}), 32),
				Metric: uint32(r.IntN(3)), Table: kernel.Table(r.IntN(3) * 50), Protocol: kernel.ProtocolBIRD,
				Type: kernel.Unicast, NextHops: []kernel.NextHop{{Link: r.IntN(2)}, {Link: 2 + r.IntN(2)}}}
		}
		check := func(i int) {
			t.Helper()
			if !maps.EqualFunc(want, have, kernel.Route.Equal) || model.Len() != rows.Len() {
				t.Fatalf("seed %d, step %d: the kernel has %v, want %v; %d routes, want %d", seed, i, have, want,
					rows.Len(), model.Len())
			}
			for k, status := range model.All() {
				if got := rows.Status(k); got != status {
					t.Fatalf("seed %d, step %d: %s is %+v, want %+v", seed, i, k, got, status)
				}
			}
		}
		for i := range 120 {
			x := some()
			switch r.IntN(9) {
			case 0, 1, 2:
				model.Set(x.Key(), x)
				rows.Set(x)
			case 3, 4:
				model.Unset(x.Key())
				rows.Unset(x.Key())
			case 5:
				want[x.Key()], have[x.Key()] = *x, *x
				model.Observe(x.Key(), x)
				rows.Observe(x)
			case 6:
				delete(want, x.Key())
				delete(have, x.Key())
				if r.IntN(2) == 0 { // otherwise the comparison finds it
					model.ObserveGone(x.Key())
					rows.ObserveGone(x.Key())
				}
			case 7:
				prune := r.IntN(2) == 0
				model.Prune(prune)
				rows.Prune(prune)
				if model.Resync() != nil || rows.Resync() != nil {
					t.Fatal("nothing can be read")
				}
			case 8:
				model.Flush()
				rows.Flush()
				check(i)
			}
		}
		for metric := range uint32(3) {
			for a := range byte(3) {
				for _, in := range []kernel.Table{kernel.MainTable, 50, 100} {
					p := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, 0, a}), 32)
					k := kernel.RouteKey{Dst: p, Metric: metric, Table: in}
					model.Unset(k)
					rows.Unset(k)
				}
			}
		}
		model.Prune(true)
		rows.Prune(true)
		_, _ = model.Resync(), rows.Resync()
		model.Flush()
		rows.Flush()
		check(-1)
		if rows.rows.Len() != 0 {
			t.Fatalf("seed %d: %d rows are left", seed, rows.rows.Len())
		}
	}
}
