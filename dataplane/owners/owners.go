package owners

import (
	"net/netip"

	"github.com/manxnet/manx/datastore/model"
)

// owner is the workload that has an address.
type owner struct {
	id    uint64 // model.Object.Owner
	local bool   // it is on this node: package route forgets connections of such addresses, before it moves the route
	// remote: it was seen on another node. Neither is set for an owner in the file.
	remote bool
}

// owners are those of addresses. Two workloads may claim one for a while: Calico releases the address of a pod before
// the pod is gone. Then the one that came last has it.
type owners map[netip.Addr]owner

// leave takes an address from o. It reports whether connections with it are to be forgotten.
func (m owners) leave(a netip.Addr, o owner) bool {
	if now, ok := m[a]; ok && now.id != o.id {
		return false
	}
	delete(m, a)
	return !o.local
}

// arrive gives an address to o. It reports whether connections with it are to be forgotten. Those of an address that
// nobody had are o's own.
func (m owners) arrive(a netip.Addr, o owner) bool {
	now, ok := m[a]
	m[a] = o
	return ok && now.id != o.id && (!o.local || now.remote)
}

// change takes over another version of an endpoint, nil for none. It returns the addresses whose connections are to be
// forgotten: those that nobody has now, and those that somebody else has already. has returns the addresses of an
// endpoint that count.
func (m owners) change(was, is *model.Object, node string, has func(*model.Object) []netip.Addr) (left,
	taken []netip.Addr) {
	before, after := ownerOf(was, node), ownerOf(is, node)
	keeps := map[netip.Addr]bool{}
	for _, a := range has(is) {
		keeps[a] = true
	}
	for _, a := range has(was) {
		if (!keeps[a] || before.id != after.id) && m.leave(a, before) {
			if keeps[a] {
				taken = append(taken, a)
			} else {
				left = append(left, a)
			}
		}
	}
	for _, a := range has(is) {
		if m.arrive(a, after) {
			taken = append(taken, a)
		}
	}
	return left, taken
}

// settle compares with all endpoints. It returns the addresses whose connections are to be forgotten.
func (m owners) settle(all map[netip.Addr][]owner) (list []netip.Addr) {
	for a, now := range m {
		claims := all[a]
		still := false
		for _, c := range claims {
			still = still || c.id == now.id
		}
		switch {
		case still:
		case len(claims) == 0:
			if m.leave(a, now) {
				list = append(list, a)
			}
		case m.arrive(a, claims[0]):
			list = append(list, a)
		}
	}
	for a, claims := range all {
		if _, ok := m[a]; !ok {
			m[a] = claims[0]
		}
	}
	return list
}

func ownerOf(o *model.Object, node string) owner {
	w := o.Workload()
	if w == nil {
		return owner{}
	}
	local := w.Node == node
	return owner{o.Owner(), local, !local}
}
