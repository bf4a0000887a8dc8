package main

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/manxnet/manx/daemon/besidecalico"
	"github.com/manxnet/manx/daemon/deps"
	"github.com/manxnet/manx/daemon/kubenode"
	"github.com/manxnet/manx/daemon/part"
	"github.com/manxnet/manx/dataplane/reconcile"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/ipam"
	"github.com/manxnet/manx/proto/server"
)

// newEvents returns Events about this node, nil without a Kubernetes API.
func newEvents(d deps.Deps) (*kubenode.Events, error) {
	if d.Kube == nil {
		return nil, nil
	}
	client, err := typedcorev1.NewForConfig(d.Kube)
	if err != nil {
		return nil, fmt.Errorf("events: %w", err)
	}
	return kubenode.NewEvents(client, d.Node.Kubernetes), nil
}

// kubernetesParts returns the parts that report this node's state to Kubernetes; none without a Kubernetes API.
func kubernetesParts(d deps.Deps, o calicoOptions, events *eventsPart, drain *drain) ([]part.Part, error) {
	if d.Kube == nil {
		return nil, nil
	}
	condition, err := newNetworkCondition(d, drain)
	if err != nil {
		return nil, err
	}
	return []part.Part{events, condition, besidecalico.NewWatch(calicoFinder(d, o), d.Log)}, nil
}

// repairedBy returns the function that reports changes of another program which a target has undone.
func repairedBy(events *kubenode.Events) func(target string, list []reconcile.Repair, more int) {
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

// eventsPart reports Events that no other part reports.
type eventsPart struct {
	deps.Deps
	bgp    *bgpPart
	policy *policyPart
	pools  *kubenode.Pools
	// leads reports whether this node leads the controllers' election; nil if it is no candidate.
	leads func() bool
}

func newEventsPart(d deps.Deps, b *bgpPart, p *policyPart, c *clusterControllers) *eventsPart {
	var leads func() bool
	if c != nil {
		leads = func() bool { return c.State().Leading }
	}
	return &eventsPart{Deps: d, bgp: b, policy: p, leads: leads,
		pools: kubenode.NewPools(d.Events, ipam.New(d.Store, d.Log.Named("ipam"), time.Now).Utilization)}
}

func (e *eventsPart) Name() string      { return "events" }
func (e *eventsPart) Close()            { e.Events.Close() }
func (e *eventsPart) Needs() part.Needs { return part.AllOf(model.KindNode) }

// Notices report that the API refuses Events.
func (e *eventsPart) Notices() []server.Notice { return refusedEvents(e.Events) }

func refusedEvents(events *kubenode.Events) []server.Notice {
	err := events.Refused()
	if err == nil {
		return nil
	}
	return []server.Notice{{Topic: "daemon", Subject: "Events of Kubernetes", Text: "cannot be written: " +
		err.Error()}}
}

// Run implements part.Part.
func (e *eventsPart) Run(ctx context.Context) error {
	sessions := kubenode.NewSessions(e.Events)
	policies := kubenode.NewChanges(e.Events, kubenode.PolicyRefused)
	objects := kubenode.NewObjects(e.Events, kubenode.Quarantined)
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
			sessions.Evaluate(now, e.bgp.speaker.Statuses())
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
func (e *eventsPart) reportsCluster() bool {
	if e.leads != nil {
		return e.leads()
	}
	for o := range e.Tables.Snapshot().All(model.KindNode) {
		return o.Key.Name == e.Node.Name
	}
	return false
}

func (e *eventsPart) countPools(ctx context.Context) error {
	if !e.reportsCluster() {
		return nil
	}
	return e.pools.Evaluate(ctx)
}

// refusedPolicies returns the policies that the kernel of this node refuses, and on one node of the cluster those that
// no node can use.
func (e *eventsPart) refusedPolicies() map[string]string {
	list := map[string]string{}
	if e.policy == nil {
		return list
	}
	status := e.policy.Status()
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
func (e *eventsPart) quarantined() map[corev1.ObjectReference]string {
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

// networkCondition maintains the condition NetworkUnavailable of the Node.
type networkCondition struct {
	*kubenode.Condition
	deps.Deps
}

func newNetworkCondition(d deps.Deps, drain *drain) (*networkCondition, error) {
	client, err := typedcorev1.NewForConfig(d.Kube)
	if err != nil {
		return nil, fmt.Errorf("condition of the Node: %w", err)
	}
	c := &networkCondition{Deps: d}
	c.Condition = &kubenode.Condition{Client: client, Node: d.Node.Kubernetes, Log: d.Log.Named("node"),
		Ready:    func() bool { ready, _ := d.Control.Ready(); return ready },
		Identity: c.identity, OutOfService: func() string { return outOfService(drain.State().Phase) }}
	return c, nil
}

// outOfService returns the condition's message while the node's routes are withdrawn.
func outOfService(phase model.DrainPhase) string {
	if phase == model.Drained {
		return "this node is drained on request, its routes are withdrawn: manxctl node undrain returns it to service"
	}
	return ""
}

func (c *networkCondition) Name() string                  { return "network-condition" }
func (c *networkCondition) Needs() part.Needs             { return part.OwnOf(model.KindNode) }
func (c *networkCondition) Run(ctx context.Context) error { return c.Condition.Run(ctx) }

// identity returns the identity of the Node in the datastore.
func (c *networkCondition) identity() string {
	if n := model.Get[model.Node](c.Tables.Snapshot(), model.ResourceKey(model.KindNode, c.Deps.Node.Name)); n != nil {
		return string(n.UID)
	}
	return ""
}

// Notices report that the condition could not be written.
func (c *networkCondition) Notices() []server.Notice {
	err := c.Problem()
	if err == nil {
		return nil
	}
	return []server.Notice{{Topic: "node", Subject: c.Condition.Node,
		Text: "the condition NetworkUnavailable cannot be written in Kubernetes: " + err.Error()}}
}
