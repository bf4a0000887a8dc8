package kubenode

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

const (
	// mostObjects is the number of objects about which one call of Record records Events.
	mostObjects = 5
	// renewal is the interval between Events about an object that stays faulty: an apiserver forgets them after an
	// hour.
	renewal = 50 * time.Minute
)

// Objects records Events about objects of the API that are faulty. kubectl describe shows them at the object.
type Objects struct {
	events   *Events
	reason   Reason
	recorded map[corev1.ObjectReference]fault
}

type fault struct {
	text string
	at   time.Time
}

// NewObjects returns Objects that have recorded nothing.
func NewObjects(e *Events, r Reason) *Objects {
	return &Objects{events: e, reason: r, recorded: map[corev1.ObjectReference]fault{}}
}

// Record records Events about new and changed faults, and about those whose last Event is old. A call records a few,
// and leaves the others to the next one: those recorded longest ago come first, so that objects that change all the
// time keep no other one waiting. The texts must contain no secret.
func (o *Objects) Record(now time.Time, wrong map[corev1.ObjectReference]string) {
	maps.DeleteFunc(o.recorded, func(r corev1.ObjectReference, _ fault) bool { return wrong[r] == "" })
	left := mostObjects
	for _, r := range slices.SortedFunc(maps.Keys(wrong), func(a, b corev1.ObjectReference) int {
		return cmp.Or(o.recorded[a].at.Compare(o.recorded[b].at), strings.Compare(a.String(), b.String()))
	}) {
		last := o.recorded[r]
		if last.text == wrong[r] && now.Sub(last.at) < renewal {
			continue
		}
		if left--; left < 0 {
			return
		}
		o.recorded[r] = fault{wrong[r], now}
		o.events.record(&r, corev1.EventTypeWarning, o.reason, wrong[r])
	}
}
