package datastore

import (
	"time"

	"github.com/manxnet/manx/datastore/model"
)

// KindStatus is the state of one kind in the tables relative to the datastore.
type KindStatus struct {
	Kind   model.Kind
	InSync bool
	Since  time.Time // of InSync's last change
	// Lost is the reason while InSync is not set; nil before the first full read and the first loss.
	Lost error
	// Objects is the number of usable objects, Quarantined of unusable ones, and Revision, on the kind's clock, the one
	// up to which these are complete: as readers see them, or as far as they are read while there is no Snapshot.
	Objects, Quarantined int
	Revision             int64
	// Answered is the time of the last answer of the datastore about the kind: a change, or that there is none. Zero
	// before the first one. The objects may be older than the datastore's by the time since then.
	Answered time.Time
}

// Kinds returns the state of each watched kind, in the order of their names.
func (t *Tables) Kinds() []KindStatus {
	t.mu.Lock()
	defer t.mu.Unlock()
	list := make([]KindStatus, len(t.work))
	for i, w := range t.work {
		v := w.shown
		if !t.status.Complete {
			v = &w.view
		}
		list[i] = KindStatus{Kind: w.kind, InSync: w.inSync(), Since: w.since, Objects: v.objects.Len(),
			Quarantined: v.quarantined.Len(), Revision: max(v.revision, t.status.Revision), Answered: w.answered}
		if p := w.whyLost(); p != nil {
			list[i].Lost = p.lost
		}
	}
	return list
}
