package wireguard

import (
	"errors"
	"slices"

	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/datastore/model"
)

// CleanupExceptions removes what Calico does not have: the rules for the packets of this host that no tunnel takes, and
// the table arp manx.
func CleanupExceptions(k Kernel) error {
	rules, err := k.ListRules()
	errs := []error{err}
	for _, r := range rules {
		if isException(r) {
			errs = append(errs, k.DeleteRule(r))
		}
	}
	if mark, err := k.ARPMark(); err == nil && mark != 0 {
		errs = append(errs, k.MarkARP(0))
	}
	return errors.Join(errs...)
}

// Cleanup removes the devices of this node, the rules of a Target, and the routes in their tables. It returns how many
// devices and routes it removed.
func Cleanup(k Kernel) (removed int, err error) {
	errs := []error{CleanupExceptions(k)}
	rules, err := k.ListRules()
	errs = append(errs, err)
	var tables []kernel.Table
	for _, r := range rules {
		single := r.Mark != 0 && r.Mark&(r.Mark-1) == 0
		if !r.Not || r.Mark != r.Mask || !single || r.Protocol != kernel.ProtocolCalico || r.Table == kernel.MainTable {
			continue
		}
		errs = append(errs, k.DeleteRule(r))
		if !slices.Contains(tables, r.Table) {
			tables = append(tables, r.Table)
		}
	}
	links, err := k.ListLinks()
	errs = append(errs, err)
	for _, e := range encryptions(&model.FelixConfigurationSpec{}) {
		for _, l := range links {
			if l.Name == e.Device && l.Kind == kernel.KindWireGuard {
				errs = append(errs, k.DeleteLink(l.Index))
				removed++
			}
		}
	}
	if len(tables) == 0 {
		return removed, errors.Join(errs...)
	}
	routes, err := k.ListRoutes(tables...)
	errs = append(errs, err)
	var ops []kernel.RouteOp
	for _, r := range routes { // those through the devices went with them
		if (r.Type == kernel.Throw || r.Type == kernel.Unreachable) && r.Protocol == kernel.ProtocolBoot {
			ops = append(ops, kernel.RouteOp{Verb: kernel.DeleteRoute, Route: r})
		}
	}
	errs = append(errs, k.ApplyRoutes(ops)...)
	return removed + len(ops), errors.Join(errs...)
}
