// Package kubenode reports this node's state to Kubernetes: Events for operators, and the Node's condition
// NetworkUnavailable.
package kubenode

import (
	"cmp"
	"context"
	"strings"
	"sync"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"
)

// Reason is the reason of an Event, by which people and alerts select.
type Reason string

// The reasons of Events.
const (
	SessionDown    Reason = "BGPSessionDown"
	SessionUp      Reason = "BGPSessionUp" // one that was reported down
	AddressChanged Reason = "NodeAddressChanged"
	PoolNearlyFull Reason = "IPPoolNearlyFull"
	DriftRepaired  Reason = "DriftRepaired"
	PolicyRefused  Reason = "PolicyRefused"
	Restarted      Reason = "DaemonRestarted"   // in its container, after an unexpected end
	Quarantined    Reason = "ObjectQuarantined" // about an object that Manx cannot use
	Invalid        Reason = "ObjectInvalid"     // about an object that is used although it breaks a rule
)

// component is the source of the Events.
const component = "manx"

// Limits that protect an apiserver from a faulty node: for each reason and object a burst of Events, and then one in an
// interval.
// Similar ones are counted in one Event (client-go's correlator).
const (
	burst       = 10
	refillEvery = 120
)

// Events records Events about this host's Node, and about objects of the cluster. Recording never blocks: it retries a
// few times while the apiserver is not available, and drops Events beyond its queue. A nil *Events records nothing.
type Events struct {
	node        *corev1.ObjectReference
	client      typedcorev1.EventsGetter
	broadcaster record.EventBroadcaster
	recorder    record.EventRecorder
	ctx         context.Context
	stop        context.CancelFunc

	mu      sync.Mutex
	refused error
}

// NewEvents returns Events about a Node; Close ends its goroutines.
func NewEvents(client typedcorev1.EventsGetter, node string) *Events {
	// The package would log each failed attempt; Refused reports it once.
	ctx, stop := context.WithCancel(klog.NewContext(context.Background(), logr.Discard()))
	e := &Events{client: client, ctx: ctx, stop: stop,
		// As the kubelet does it: kubectl describe searches Events of a Node there.
		node: &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: node, UID: types.UID(node)}}
	e.broadcaster = record.NewBroadcaster(record.WithContext(ctx),
		record.WithCorrelatorOptions(record.CorrelatorOptions{
			BurstSize: burst, QPS: 1. / refillEvery, SpamKeyFunc: func(e *corev1.Event) string {
				return e.Reason + " " + e.InvolvedObject.String()
			}}))
	e.recorder = e.broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: component, Host: node}).
		WithLogger(logr.Discard())
	e.broadcaster.StartRecordingToSink(sink{e})
	return e
}

// Close ends the goroutines; unrecorded Events are lost.
func (e *Events) Close() {
	e.broadcaster.Shutdown()
	e.stop()
}

// Warn records an Event that may need an action. text must contain no secret.
func (e *Events) Warn(r Reason, text string) { e.record(nil, corev1.EventTypeWarning, r, text) }

// note records an Event for information. text must contain no secret.
func (e *Events) note(r Reason, text string) { e.record(nil, corev1.EventTypeNormal, r, text) }

// maxText bounds the text of an Event, in bytes, within the API's limit.
const maxText = 1000

// record records an Event about an object, or about the Node if that is nil.
func (e *Events) record(about *corev1.ObjectReference, kind string, r Reason, text string) {
	if e == nil {
		return
	}
	if len(text) > maxText {
		text = strings.ToValidUTF8(text[:maxText], "") + "..." // the cut may be inside of a character
	}
	e.recorder.Event(cmp.Or(about, e.node), kind, string(r), text)
}

// Refused returns the API's error for the last Event, nil if it was recorded.
func (e *Events) Refused() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.refused
}

// sink writes Events, and records the result.
type sink struct{ *Events }

func (s sink) outcome(e *corev1.Event, err error) (*corev1.Event, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refused = err
	return e, err
}

func (s sink) Create(e *corev1.Event) (*corev1.Event, error) {
	return s.outcome(s.client.Events("").CreateWithEventNamespaceWithContext(s.ctx, e))
}

func (s sink) Update(e *corev1.Event) (*corev1.Event, error) {
	return s.outcome(s.client.Events("").UpdateWithEventNamespaceWithContext(s.ctx, e))
}

func (s sink) Patch(e *corev1.Event, data []byte) (*corev1.Event, error) {
	return s.outcome(s.client.Events("").PatchWithEventNamespaceWithContext(s.ctx, e, data))
}
