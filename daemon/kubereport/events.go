// Package kubereport reports this node's state to Kubernetes: Events, and the condition NetworkUnavailable of its Node.
package kubereport

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/manxnet/manx/bgp/speaker"
	"github.com/manxnet/manx/daemon/deps"
	"github.com/manxnet/manx/daemon/kubenode"
	"github.com/manxnet/manx/daemon/part"
	"github.com/manxnet/manx/dataplane"
	"github.com/manxnet/manx/dataplane/reconcile"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/ipam"
	"github.com/manxnet/manx/proto/server"
)

// NewRecorder returns Events about this node, nil without a Kubernetes API.
func NewRecorder(d deps.Deps) (*kubenode.Events, error) {
	if d.Kube == nil {
		return nil, nil
	}
	client, err := typedcorev1.NewForConfig(d.Kube)
	if err != nil {
		return nil, fmt.Errorf("events: %w", err)
	}
	return kubenode.NewEvents(client, d.Node.Kubernetes), nil
}

// RepairedBy returns the function that reports changes of another program which a target has undone.
func RepairedBy(events *kubenode.Events) func(target string, list []reconcile.Repair, more int) {
	return func(target string, list []reconcile.Repair, more int) {
		example := list[0]
		events.Warn(kubenode.DriftRepaired, fmt.Sprintf(
			"%d changes that another program had made were undone (%s), such as %s: found %s, want %s", len(list)+more,
			target, example.Key, cmp.Or(example.Found, "nothing"), cmp.Or(example.Wanted, "nothing")))
	}
}

const (
	sessionsPoll = 5 * time.Second
	policyPoll   = 30 * time.Second
	poolsPoll    = 5 * time.Minute
)

// Sources are the facts that become Events.
type Sources struct {
	Sessions func() []speaker.SessionStatus
	Policy   func() dataplane.PolicyStatus // nil: policy is disabled
	Leads    func() bool                   // this node leads the controllers' election; nil: it is no candidate
}

// Events is the part that reports Events that no other part reports.
type Events struct {
	deps.Deps
	from  Sources
	pools *kubenode.Pools
}

// NewEvents returns the part; the Kubernetes API has to be known.
func NewEvents(d deps.Deps, from Sources) *Events {
	return &Events{Deps: d, from: from,
		pools: kubenode.NewPools(d.Events, ipam.New(d.Store, d.Log.Named("ipam"), time.Now).Utilization)}
}

func (e *Events) Name() string      { return "events" }
func (e *Events) Close()            { e.Deps.Events.Close() }
func (e *Events) Needs() part.Needs { return part.AllOf(model.KindNode) }

// Notices report that the API refuses Events.
func (e *Events) Notices() []server.Notice { return refused(e.Deps.Events) }

func refused(events *kubenode.Events) []server.Notice {
	err := events.Refused()
	if err == nil {
		return nil
	}
	return []server.Notice{{Topic: "daemon", Subject: "Events of Kubernetes", Text: "cannot be written: " +
		err.Error()}}
}

// Run implements part.Part.
func (e *Events) Run(ctx context.Context) error {
	sessions := kubenode.NewSessions(e.Deps.Events)
	policies := kubenode.NewChanges(e.Deps.Events, kubenode.PolicyRefused)
	objects := kubenode.NewObjects(e.Deps.Events, kubenode.Quarantined)
	pollSessions := time.NewTicker(sessionsPoll)
	defer pollSessions.Stop()
	pollPolicies := time.NewTicker(policyPoll)
	defer pollPolicies.Stop()
	pollPools := time.NewTicker(poolsPoll)
	defer pollPools.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case now := <-pollSessions.C:
			sessions.Evaluate(now, e.from.Sessions())
			objects.Record(now, e.quarantined())
		case <-pollPolicies.C:
			policies.Record(e.refusedPolicies())
		case <-pollPools.C:
			if err := e.countPools(ctx); err != nil {
				e.Log.Debug("pools cannot be counted", zap.Error(err))
			}
		}
	}
}

// reportsCluster reports whether this node records the Events about the cluster. The leader of the controllers does,
// also while calico-kube-controllers do the controllers' work. Without an election (--controllers=off) it is the first
// node by name, running or not.
func (e *Events) reportsCluster() bool {
	if e.from.Leads != nil {
		return e.from.Leads()
	}
	for o := range e.Tables.Snapshot().All(model.KindNode) {
		return o.Key.Name == e.Node.Name
	}
	return false
}

func (e *Events) countPools(ctx context.Context) error {
	if !e.reportsCluster() {
		return nil
	}
	return e.pools.Evaluate(ctx)
}

// refusedPolicies returns the policies that the kernel of this node refuses, and on one node of the cluster those that
// no node can use.
func (e *Events) refusedPolicies() map[string]string {
	list := map[string]string{}
	if e.from.Policy == nil {
		return list
	}
	status := e.from.Policy()
	for _, r := range status.Refused {
		list[r.Comment] = fmt.Sprintf("the kernel refuses rules of %s (%s), everything they are about is dropped: %s",
			r.Comment, r.Object, r.Reason)
	}
	if e.reportsCluster() {
		for k, why := range status.Bad {
			list[k.String()] = fmt.Sprintf("%s cannot be used: %s", k, why)
		}
	}
	return list
}

// quarantined returns the quarantined objects of the Kubernetes API with the reason, on one node of the cluster.
func (e *Events) quarantined() map[corev1.ObjectReference]string {
	store, ok := e.Store.(interface {
		Reference(o *model.Object) (corev1.ObjectReference, bool)
	})
	if !ok || !e.reportsCluster() {
		return nil
	}
	list := map[corev1.ObjectReference]string{}
	for q := range e.Tables.Snapshot().Quarantined() {
		if r, ok := store.Reference(q.Object); ok {
			text := "it cannot be used, as if it did not exist"
			if q.InUse != 0 {
				text = "it cannot be used, its last valid version is in use"
			}
			list[r] = fmt.Sprintf("%s: %v", text, q.Object.Err)
		}
	}
	return list
}

// Written is the part that shows refusals of Events that others record.
type Written struct{ *kubenode.Events }

func (w Written) Name() string             { return "events" }
func (w Written) Notices() []server.Notice { return refused(w.Events) }

// Run implements part.Part.
func (w Written) Run(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}
