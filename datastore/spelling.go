package datastore

import (
	"errors"
	"fmt"
	"time"

	"github.com/manxnet/manx/datastore/model"
)

// errSpelledTwice is the reason why a policy under its old name is not used.
var errSpelledTwice = errors.New("is stored under the old spelling of its name beside the one under today's, which " +
	"counts: delete one of them")

// settleSpelling selects one version of a policy that is stored under both names: that under today's, which a read by
// name also returns. The other one is quarantined as long as both exist.
func (w *working) settleSpelling(k model.Key, now func() time.Time) {
	if old, ok := model.OldPolicyKey(k); ok {
		w.settlePair(old, k, now)
	}
	if current, ok := model.NewPolicyKey(k); ok {
		w.settlePair(k, current, now)
	}
}

func (w *working) settlePair(old, current model.Key, now func() time.Time) {
	spare, inUse := w.objects.get(old)
	_, taken := w.objects.get(current)
	bad, quarantined := w.quarantined.get(old)
	switch {
	case inUse && taken && spare.Metadata().GetName() == current.Name:
		w.objects.remove(old)
		if !quarantined {
			shadowed := *spare
			shadowed.Err = fmt.Errorf("%s %w", old, errSpelledTwice)
			w.quarantined.set(Quarantined{Object: &shadowed, Since: now()})
		}
	case !taken && quarantined && errors.Is(bad.Object.Err, errSpelledTwice):
		back := *bad.Object
		back.Err = nil
		w.objects.set(&back)
		w.quarantined.remove(old)
	default:
		return
	}
	w.parts[Whole].touch(old) // of policies there are no parts
}
