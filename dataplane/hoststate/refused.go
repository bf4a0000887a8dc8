package hoststate

import (
	"maps"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/manxnet/manx/dataplane/reconcile"
	"github.com/manxnet/manx/datastore/model"
)

// Refusals are the workloads of this host that are not acted upon, and why. The zero value has none.
type Refusals map[model.Key]reconcile.Notice

// Take determines the refused objects again, and logs new ones.
func (r *Refusals) Take(h *Host, now time.Time, log *zap.Logger) {
	next := Refusals{}
	for k := range h.endpoints {
		text := h.refusal(k)
		if text == "" {
			continue
		}
		n, known := (*r)[k]
		if !known || n.Text != text {
			n = reconcile.Notice{Subject: k.String(), Text: text, Since: now}
			log.Warn("a workload's endpoint is not used", zap.Stringer("key", k), zap.String("reason", text))
		}
		next[k] = n
	}
	*r = next
}

// List is in order.
func (r Refusals) List() []reconcile.Notice {
	return slices.SortedFunc(maps.Values(r),
		func(x, y reconcile.Notice) int { return strings.Compare(x.Subject, y.Subject) })
}
