package kubenode

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/manxnet/manx/retry"
)

// The reasons and the message of the condition NetworkUnavailable are Calico's, which other programs know, and which
// stay the same when a node is moved.
const (
	networkUp     = "CalicoIsUp"
	networkDown   = "CalicoIsDown"
	messageUp     = "Calico is running on this node"
	readyPoll     = time.Second
	changePoll    = 5 * time.Second
	recheckEvery  = 10 * time.Minute
	writeTimeout  = 10 * time.Second
	conditionType = corev1.NodeNetworkUnavailable
)

// Condition maintains the condition NetworkUnavailable of this host's Node. It is False once this node has been ready,
// and True while the node is drained. The end of the daemon changes nothing: routes, rules and sessions outlive it, and
// a taint for each update would keep pods off nodes whose network works.
type Condition struct {
	Client typedcorev1.NodesGetter
	Node   string // its name in Kubernetes
	// Ready reports whether this node is ready. It is called until it returns true once.
	Ready func() bool
	// OutOfService returns the reason why the node is out of service, empty if it is not.
	OutOfService func() string
	// Identity returns the identity of the Node in the datastore: a recreated Node has no conditions. Empty if not
	// known.
	Identity func() string
	Log      *zap.Logger

	mu      sync.Mutex
	problem error
}

// Problem returns the last error of writing the condition, nil if it is up to date.
func (c *Condition) Problem() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.problem
}

// written is the last written condition.
type written struct {
	out, identity string
	recheck       time.Time
}

var writeBackoff = retry.Backoff{Min: 2 * time.Second, Max: 5 * time.Minute}

// Run maintains the condition until ctx ends.
func (c *Condition) Run(ctx context.Context) error {
	for !c.Ready() {
		if !retry.Sleep(ctx, readyPoll) {
			return ctx.Err()
		}
	}
	var have written
	failures := 0
	for {
		wait := changePoll
		out, identity := c.OutOfService(), c.Identity()
		if have.recheck.Before(time.Now()) || out != have.out || identity != have.identity {
			err := c.write(ctx, c.wanted(out))
			if c.note(err); err == nil {
				failures = 0
				have = written{out, identity, time.Now().Add(recheckEvery + rand.N(recheckEvery/4))}
			} else {
				failures++
				wait = writeBackoff.After(failures)
			}
		}
		if !retry.Sleep(ctx, wait) {
			return ctx.Err()
		}
	}
}

// note logs a problem when it starts, and its end.
func (c *Condition) note(err error) {
	c.mu.Lock()
	before := c.problem
	c.problem = err
	c.mu.Unlock()
	switch {
	case err != nil && (before == nil || before.Error() != err.Error()):
		c.Log.Warn("the condition NetworkUnavailable of the Node cannot be written, trying again", zap.Error(err))
	case err == nil && before != nil:
		c.Log.Info("the condition NetworkUnavailable of the Node is written")
	}
}

func (c *Condition) wanted(out string) corev1.NodeCondition {
	if out == "" {
		return corev1.NodeCondition{Type: conditionType, Status: corev1.ConditionFalse, Reason: networkUp,
			Message: messageUp}
	}
	return corev1.NodeCondition{Type: conditionType, Status: corev1.ConditionTrue, Reason: networkDown, Message: out}
}

// write writes the condition unless it is up to date.
func (c *Condition) write(ctx context.Context, want corev1.NodeCondition) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	return setCondition(ctx, c.Client, c.Node, want)
}

// setCondition sets a condition of a Node. It does not write one that differs only in its times.
func setCondition(ctx context.Context, client typedcorev1.NodesGetter, node string, want corev1.NodeCondition) error {
	n, err := client.Nodes().Get(ctx, node, metav1.GetOptions{})
	if err != nil {
		return err
	}
	now := metav1.Now()
	want.LastHeartbeatTime, want.LastTransitionTime = now, now
	for _, have := range n.Status.Conditions {
		if have.Type != want.Type {
			continue
		}
		if have.Status == want.Status && have.Reason == want.Reason && have.Message == want.Message {
			return nil
		}
		if have.Status == want.Status {
			want.LastTransitionTime = have.LastTransitionTime
		}
	}
	// Conditions are merged by their type, so those of others stay. The identity protects a new Node of that name.
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": n.UID},
		"status": map[string]any{"conditions": []corev1.NodeCondition{want}}})
	if err != nil {
		return err
	}
	_, err = client.Nodes().PatchStatus(ctx, node, patch)
	if err != nil {
		return fmt.Errorf("condition %s: %w", want.Type, err)
	}
	return nil
}
