package datastore

import (
	"errors"
	"fmt"
	"time"

	"github.com/manxnet/manx/datastore/model"
)

// errSpelledTwice is why a policy under the old spelling of its name is not used.
var errSpelledTwice = errors.New("is stored under the old spelling of its name beside the one under today's, which counts: delete one of them")

// settleSpelling makes sure that of a policy that is stored under both spellings of its name one counts: today's, which is
// also what a read by name finds. The other one is in quarantine for as long as both are there.
func (w *workingState) settleSpelling(k model.Key, now func() time.Time) {
	if old, ok := model.OldPolicyKey(k); ok {
		w.settlePair(old, k, now)
	}
	if current, ok := model.NewPolicyKey(k); ok {
		w.settlePair(k, current, now)
	}
}

func (w *workingState) settlePair(old, current model.Key, now func() time.Time) {
	k := treeKey(old)
	spare, inUse := w.objects.Get(k)
	_, taken := w.objects.Get(treeKey(current))
	bad, quarantined := w.quarantined.Get(k)
	switch {
	case inUse && taken && spare.Metadata().GetName() == current.Name:
		w.objects.Delete(k)
		if !quarantined {
			shadowed := *spare
			shadowed.Err = fmt.Errorf("%s %w", old, errSpelledTwice)
			w.quarantined.Insert(k, Quarantined{Object: &shadowed, Since: now()})
		}
	case !taken && quarantined && errors.Is(bad.Object.Err, errSpelledTwice):
		back := *bad.Object
		back.Err = nil
		w.objects.Insert(k, &back)
		w.quarantined.Delete(k)
	default:
		return
	}
	w.changed = append(w.changed, old)
}
