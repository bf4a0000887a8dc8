package dataplane

import (
	"maps"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/manxnet/manx/datastore/model"
)

// refusals are the workloads of this host that are not acted upon, and why.
type refusals map[model.Key]Notice

// take finds out again which they are, and logs what is new.
func (r *refusals) take(s *state, now time.Time, log *zap.Logger) {
	next := refusals{}
	for k := range s.endpoints {
		text := s.refusal(k)
		if text == "" {
			continue
		}
		n, known := (*r)[k]
		if !known || n.Text != text {
			n = Notice{Subject: k.String(), Text: text, Since: now}
			log.Warn("a workload's endpoint is not used", zap.Stringer("key", k), zap.String("reason", text))
		}
		next[k] = n
	}
	*r = next
}

// list is in order.
func (r refusals) list() []Notice {
	return slices.SortedFunc(maps.Values(r), func(x, y Notice) int { return strings.Compare(x.Subject, y.Subject) })
}
