package route

import (
	"fmt"
	"hash/fnv"
	"net/netip"
	"testing"
	"time"

	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/reconcile"
	"github.com/manxnet/manx/dataplane/reconcile/reconciletest"
)

// Set, Unset and Status have the routes of a table by their keys; a Target has their rows.
func (t *table) Set(r *kernel.Route)     { t.setDesired(t.rows.putRoute(r.Key()), t.shapes.number(r)) }
func (t *table) Unset(k kernel.RouteKey) { t.setDesired(t.rows.findRoute(k), 0) }

func (t *table) Status(k kernel.RouteKey) reconcile.Status {
	if n := t.rows.findRoute(k); n != 0 {
		return t.status(n)
	}
	return reconcile.Status{}
}

// contract is the table of routes as the tests of the contract see it: objects are routes to one address each, and
// their values are interfaces.
type contract struct {
	*table
	store *reconciletest.Store
	names map[netip.Prefix]string
}

func (c *contract) route(key string, value int) *kernel.Route {
	h := fnv.New64a()
	fmt.Fprint(h, key)
	var a [16]byte
	copy(a[:], "\xfd"+string(h.Sum(nil)))
	r := &kernel.Route{Dst: netip.PrefixFrom(netip.AddrFrom16(a), 128), Metric: 7, Protocol: kernel.ProtocolBIRD,
		Type: kernel.Unicast, NextHops: []kernel.NextHop{{Link: value}}}
	c.names[r.Dst] = key
	return r
}

func (c *contract) key(key string) kernel.RouteKey { return c.route(key, 0).Key() }

func (c *contract) Set(key string, value int)          { c.table.Set(c.route(key, value)) }
func (c *contract) Unset(key string)                   { c.table.Unset(c.key(key)) }
func (c *contract) Observe(key string, value int)      { c.table.Observe(c.route(key, value)) }
func (c *contract) ObserveGone(key string)             { c.table.ObserveGone(c.key(key)) }
func (c *contract) Retry(key string)                   { c.table.Retry(c.key(key)) }
func (c *contract) Status(key string) reconcile.Status { return c.table.Status(c.key(key)) }

func (c *contract) Phases() map[string]reconcile.Phase {
	phases := map[string]reconcile.Phase{}
	for n := range c.rows.withRoute() {
		phases[c.names[c.table.key(n).Dst]] = c.status(n).Phase
	}
	return phases
}

// Repairs turns routes back into names and values.
func (c *contract) Repairs() ([]reconcile.Repair, int) {
	list, more := c.table.Repairs()
	for i, r := range list {
		for dst, name := range c.names {
			if r.Key != c.key(name).String() {
				continue
			}
			list[i].Key = name
			for _, text := range []*string{&list[i].Found, &list[i].Wanted} {
				var value int
				if _, err := fmt.Sscanf(*text, dst.String()+" dev #%d proto bird metric 7", &value); err == nil {
					*text = fmt.Sprint(value)
				}
			}
		}
	}
	return list, more
}

// ListRoutes implements kernel.Routes.
func (c *contract) ListRoutes(...kernel.Table) ([]kernel.Route, error) {
	var list []kernel.Route
	for key, value := range c.store.Have {
		list = append(list, *c.route(key, value))
	}
	return list, c.store.ListError
}

// ApplyRoutes implements kernel.Routes.
func (c *contract) ApplyRoutes(ops []kernel.RouteOp) []error {
	actions := map[kernel.RouteVerb]reconcile.Action{kernel.AddRoute: reconcile.Add,
		kernel.ReplaceRoute: reconcile.Change, kernel.DeleteRoute: reconcile.Remove}
	errs := make([]error, len(ops))
	for i, op := range ops {
		errs[i] = c.store.Apply(actions[op.Verb], c.names[op.Route.Dst], op.Route.NextHops[0].Link)
	}
	return errs
}

func TestTableKeepsTheContract(t *testing.T) {
	reconciletest.Run(t, func(s *reconciletest.Store, now func() time.Time) reconciletest.Table {
		c := &contract{store: s, names: map[netip.Prefix]string{}}
		r := &rules{}
		r.setUnderlay(newUnderlay())
		c.table = newTable(&kernelTarget{kernel: c, rules: r}, now, reconciletest.Backoff)
		return c
	})
}
