package route

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/overlay"
	"github.com/manxnet/manx/dataplane/reconcile"
)

// errHeld is in the error about a route whose place in the table another owner has taken.
var errHeld = errors.New("is held by another owner")

// kernelTarget applies steps to the tables of the configuration.
type kernelTarget struct {
	kernel  kernel.Routes
	rules   *rules
	table   *table
	ops     []kernel.RouteOp
	lost    bool           // an answer of the kernel did not arrive
	doubt   bool           // an answer of the kernel contradicts our record of its state
	failed  map[place]bool // whose new route is not in, in the flush that is under way
	removed []kernel.Route // that led to workloads, in the flush that is under way
}

// chunk bounds the memory of one call; the kernel package makes batches of its own.
const chunk = 1024

// list returns the routes that are ours. It also records those of others, which next hops are resolved with.
func (t *kernelTarget) list() ([]kernel.Route, error) {
	routes, err := t.kernel.ListRoutes(t.rules.tables()...)
	if err != nil {
		return nil, err
	}
	t.rules.rib = newRIB()
	var external []kernel.Route
	own := slices.DeleteFunc(routes, func(r kernel.Route) bool {
		owns := t.owns(r)
		switch {
		case owns && t.rules.isExternal(&r):
			external = append(external, r)
			return true
		case !owns:
			t.rules.rib.put(r)
		}
		return !owns
	})
	for _, r := range external { // now all that may share their keys are known
		if t.owns(r) {
			own = append(own, r)
		} else {
			t.rules.rib.put(r)
		}
	}
	return own, nil
}

// owns decides whether a route in one of our tables is ours to change:
//
//   - protocol 12 is BIRD's, in whose place we are;
//   - protocol 80 is Felix': on own tunnel devices and on workload interfaces; elsewhere if it leads to a pool's
//     addresses or through a node of the cluster. Routes of tunnel devices that we do not manage (WireGuard) stay;
//   - on VXLAN devices, Felix' routes have the protocol of deviceRouteProtocol, so that all but the kernel's are ours;
//   - a CNI plugin's route to a local workload gives way to our own;
//   - with RemoveExternal, so do all others to workload interfaces.
func (t *kernelTarget) owns(r kernel.Route) bool {
	c := &t.rules.config
	switch {
	case t.rules.ontoForeign(&r):
		return false
	case r.Protocol == kernel.ProtocolBIRD:
		return true
	case c.LeaveWorkloads && t.rules.ontoWorkloads(&r):
		return false
	case r.Protocol == kernel.ProtocolCalico && t.ownsCalico(r), t.throughVTEPs(r),
		r.Protocol == c.workloadProtocol() && t.rules.toWorkload(&r),
		r.Protocol == kernel.ProtocolBoot && t.rules.toWorkload(&r) && t.rules.workloadAt(r.Dst.Addr()) != "":
		return true
	}
	return t.rules.isExternal(&r)
}

func (t *kernelTarget) ownsCalico(r kernel.Route) bool {
	for _, h := range r.NextHops {
		name := t.rules.linkName(h.Link)
		switch {
		case overlay.IsDevice(name) || t.rules.isWorkload(h.Link) || begins(name, t.rules.formerPrefixes):
			return true
		case strings.HasPrefix(name, "vxlan") || strings.HasPrefix(name, "wireguard.") ||
			strings.HasPrefix(name, "wg-"):
			return false
		case t.rules.config.IsNode != nil && h.Gateway.IsValid() && t.rules.config.IsNode(h.Gateway):
			return true
		}
	}
	return t.rules.config.Pools.Of(r.Dst) != nil
}

// throughVTEPs reports whether a route that the kernel has not made itself leads through a device of VTEPs.
func (t *kernelTarget) throughVTEPs(r kernel.Route) bool {
	return r.Protocol != kernel.ProtocolKernel && slices.ContainsFunc(r.NextHops, func(h kernel.NextHop) bool {
		return overlay.HasVTEPs(t.rules.linkName(h.Link))
	})
}

// ontoForeign reports whether a route leads to a workload that another network connects.
func (r *rules) ontoForeign(k *kernel.Route) bool {
	return slices.ContainsFunc(k.NextHops, func(h kernel.NextHop) bool {
		return begins(r.linkName(h.Link), r.config.ForeignPrefixes)
	})
}

func (r *rules) isWorkload(link int) bool {
	return begins(r.linkName(link), r.config.WorkloadPrefixes)
}

func begins(name string, prefixes []string) bool {
	return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(name, p) })
}

// apply does as many of the steps as it can, in order. The result is nil when all went well; otherwise it has an entry
// for each step. Removals of a prefix' old route wait until its new one, with another metric, is in.
func (t *kernelTarget) apply(steps []step) []error {
	var errs []error
	fail := func(i int, err error) {
		if errs == nil {
			errs = make([]error, len(steps))
		}
		errs[i] = err
		t.lost = t.lost || kernel.OutcomeUnknown(err)
		t.doubt = t.doubt || kernel.Occupied(err)
	}
	for start := 0; start < len(steps); start += chunk {
		end := min(start+chunk, len(steps))
		t.applyChunk(steps[start:end], func(i int, err error) {
			fail(start+i, err)
			if steps[start+i].Action == reconcile.Remove {
				return
			}
			if t.failed == nil {
				t.failed = map[place]bool{}
			}
			t.failed[placeOf(t.table.key(steps[start+i].row))] = true
		})
	}
	for i, s := range steps {
		if s.Action != reconcile.Remove || errs != nil && errs[i] != nil {
			continue
		}
		if old := t.table.actual(s.row); t.rules.toWorkload(&old) {
			t.removed = append(t.removed, old)
		}
	}
	return errs
}

func (t *kernelTarget) applyChunk(steps []step, fail func(int, error)) {
	t.ops = t.ops[:0]
	var index []int // of the step of each operation, once they differ
	for i, s := range steps {
		op, err := t.op(s)
		if err != nil {
			fail(i, err)
			if index == nil {
				index = make([]int, 0, len(steps))
				for j := range t.ops {
					index = append(index, j)
				}
			}
			continue
		}
		t.ops = append(t.ops, op)
		if index != nil {
			index = append(index, i)
		}
	}
	for j, err := range t.kernel.ApplyRoutes(t.ops) {
		if err == nil {
			continue
		}
		if index != nil {
			j = index[j]
		}
		fail(j, err)
	}
	clear(t.ops)
}

func (t *kernelTarget) op(s step) (kernel.RouteOp, error) {
	switch s.Action {
	case reconcile.Remove:
		if len(t.failed) > 0 && t.failed[placeOf(t.table.key(s.row))] {
			return kernel.RouteOp{}, errors.New("kept until the route that takes its place is in the kernel")
		}
		return kernel.RouteOp{Verb: kernel.DeleteRoute, Route: t.table.actual(s.row)}, nil
	case reconcile.Change:
		return kernel.RouteOp{Verb: kernel.ReplaceRoute, Route: t.table.wanted(s.row)}, nil
	}
	fresh := t.table.wanted(s.row)
	if r, held := t.rules.rib.holder(fresh.Key()); held {
		return kernel.RouteOp{}, fmt.Errorf("the place of the route (prefix and metric) %w: %q; it is used once that "+
			"one is gone",
			errHeld, r.Text(t.rules.linkName))
	}
	return kernel.RouteOp{Verb: kernel.AddRoute, Route: fresh}, nil
}
