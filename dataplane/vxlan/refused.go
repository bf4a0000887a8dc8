package vxlan

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/manxnet/manx/dataplane/hoststate"
	"github.com/manxnet/manx/dataplane/reconcile"
)

// setRefused remembers why nodes have no VTEP, for as many as have a notice.
func (t *Target) setRefused(h *hoststate.Host) {
	var list []refusal
	for _, o := range t.used {
		if !t.needed[o.Device] {
			continue // no route needs them any more
		}
		for node, why := range h.VTEPs(o.Family).Refused() {
			list = append(list, refusal{o.Name, node, why.Error()})
		}
	}
	slices.SortFunc(list, func(a, b refusal) int {
		return cmp.Or(cmp.Compare(a.Overlay, b.Overlay), cmp.Compare(a.Node, b.Node))
	})
	if more := max(len(list)-mostRefused, 0); more != t.more {
		t.more, t.moreSince = more, t.now()
	}
	since := t.refused
	t.refused = map[refusal]time.Time{}
	for _, r := range list[:len(list)-t.more] {
		t.refused[r] = t.now()
		if old, ok := since[r]; ok {
			t.refused[r] = old
		}
	}
}

// Notices returns one for each entry that cannot be made, and for nodes that get none.
func (t *Target) Notices() []reconcile.Notice {
	list := t.Driver.Notices()
	own := len(list)
	for r, since := range t.refused {
		list = append(list, reconcile.Notice{Subject: fmt.Sprintf("%s to node %s", r.Overlay, r.Node), Text: r.Why,
			Since: since})
	}
	slices.SortFunc(list[own:], func(a, b reconcile.Notice) int { return cmp.Compare(a.Subject, b.Subject) })
	if t.more > 0 {
		list = append(list, reconcile.Notice{Subject: "VXLAN", Since: t.moreSince,
			Text: fmt.Sprintf("%d further nodes cannot be reached", t.more)})
	}
	return list
}
