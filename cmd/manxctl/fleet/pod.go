package fleet

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Pod is what the Kubernetes API has about a pod that the datastore does not. Its texts are untrusted.
type Pod struct {
	Node        string // empty: it is not scheduled
	Phase       string
	HostNetwork bool
	Unscheduled string // why it has no node
}

// Ended reports whether all containers of the pod have ended for good.
func (p *Pod) Ended() bool {
	return p.Phase == string(corev1.PodSucceeded) || p.Phase == string(corev1.PodFailed)
}

// Pod returns a pod, nil if there is none.
func (c *Cluster) Pod(ctx context.Context, namespace, name string) (*Pod, error) {
	var p corev1.Pod
	err := decode(c.api.Get().Resource("pods").Namespace(namespace).Name(name).Do(ctx), &p)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, err
	}
	pod := &Pod{Node: p.Spec.NodeName, Phase: string(p.Status.Phase), HostNetwork: p.Spec.HostNetwork}
	for _, condition := range p.Status.Conditions {
		if condition.Type == corev1.PodScheduled && condition.Status == corev1.ConditionFalse {
			pod.Unscheduled = condition.Message
		}
	}
	return pod, nil
}

// mostWarnings is the number of Events that PodWarnings returns.
const mostWarnings = 3

// mostPages bounds the Events that PodWarnings reads.
const mostPages = 20

// PodWarnings returns the last Events of type Warning about a pod as text, newest first. Their texts are untrusted.
func (c *Cluster) PodWarnings(ctx context.Context, namespace, name string) (texts []string, err error) {
	at := func(e corev1.Event) time.Time {
		for _, t := range []time.Time{e.LastTimestamp.Time, e.EventTime.Time} {
			if !t.IsZero() {
				return t
			}
		}
		return e.CreationTimestamp.Time
	}
	// The API sorts Events by name, so that the newest may be on any page.
	var newest []corev1.Event
	next := ""
	for range mostPages {
		var list corev1.EventList
		err = decode(c.api.Get().Resource("events").Namespace(namespace).Param("limit", fmt.Sprint(page)).Param(
			"continue", next).Param("fieldSelector", "type=Warning,involvedObject.kind=Pod,involvedObject.name="+
			name).Do(ctx), &list)
		if err != nil {
			return nil, err
		}
		newest = append(newest, list.Items...)
		slices.SortStableFunc(newest, func(a, b corev1.Event) int { return at(b).Compare(at(a)) })
		newest = newest[:min(len(newest), mostWarnings)]
		if next = list.Continue; next == "" {
			break
		}
	}
	for _, e := range newest {
		texts = append(texts, fmt.Sprintf("%s, %d times, last %s: %s", e.Reason, max(e.Count, 1),
			at(e).UTC().Format(time.RFC3339), e.Message))
	}
	return texts, nil
}
