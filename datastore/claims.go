package datastore

import (
	"net/netip"
	"slices"

	"github.com/manxnet/manx/datastore/model"
)

// confirmations are the addresses that this process knows to be those of an endpoint, in ascending order. A claim of
// the same ones counts.
type confirmations map[model.Key][]netip.Addr

// decide returns an object with its claim as its own addresses if the claim is confirmed, and else the object itself.
func (c confirmations) decide(o *model.Object) *model.Object {
	w, ok := o.Value.(*model.WorkloadEndpoint)
	if !ok || w.Spec.Claim == nil || !slices.Equal(w.Spec.Claim.Addresses(), c[o.Key]) {
		return o
	}
	confirmed := *o
	confirmed.Value = w.Confirmed()
	return &confirmed
}

// Confirmed returns a valid object in the form that the tables give it: with its claim as its own addresses, if that is
// confirmed.
func (t *Tables) Confirmed(o *model.Object) *model.Object {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.reducer.confirmed.decide(o)
}

// Withdraw ends the confirmation of an endpoint whose addresses are released, if it has one of these.
func (t *Tables) Withdraw(key model.Key, released ...netip.Addr) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if slices.ContainsFunc(t.reducer.confirmed[key], func(a netip.Addr) bool { return slices.Contains(released, a) }) {
		delete(t.reducer.confirmed, key)
	}
}

// Confirm records the addresses of an endpoint of this node that this process has assigned, or has found in a record of
// IPAM. A claim of exactly these addresses counts until Confirm is called again, or the endpoint is deleted. Without
// addresses no claim of the endpoint counts. It may be called before the claim is stored.
func (t *Tables) Confirm(key model.Key, addresses ...netip.Addr) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(addresses) == 0 {
		delete(t.reducer.confirmed, key)
		return
	}
	t.reducer.confirmed[key] = slices.SortedFunc(slices.Values(addresses), netip.Addr.Compare)
	w := t.of(key.Kind)
	if o, known := w.objects.get(key); known {
		if confirmed := t.reducer.confirmed.decide(o); confirmed != o {
			w.objects.set(confirmed)
			w.parts[w.partOf(key)].touch(key)
			t.publish()
		}
	}
}
