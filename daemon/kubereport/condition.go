package kubereport

import (
	"context"
	"fmt"

	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/manxnet/manx/daemon/deps"
	"github.com/manxnet/manx/daemon/kubenode"
	"github.com/manxnet/manx/daemon/part"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/proto/server"
)

// Condition is the part that maintains the condition NetworkUnavailable of the Node.
type Condition struct {
	*kubenode.Condition
	deps.Deps
}

// NewCondition returns the part. outOfService returns the condition's message while the node's routes are withdrawn,
// else an empty text.
func NewCondition(d deps.Deps, outOfService func() string) (*Condition, error) {
	client, err := typedcorev1.NewForConfig(d.Kube)
	if err != nil {
		return nil, fmt.Errorf("condition of the Node: %w", err)
	}
	c := &Condition{Deps: d}
	c.Condition = &kubenode.Condition{Client: client, Node: d.Node.Kubernetes, Log: d.Log.Named("node"),
		Ready:    func() bool { ready, _ := d.Control.Ready(); return ready },
		Identity: c.identity, OutOfService: outOfService}
	return c, nil
}

func (c *Condition) Name() string                  { return "network-condition" }
func (c *Condition) Needs() part.Needs             { return part.OwnOf(model.KindNode) }
func (c *Condition) Run(ctx context.Context) error { return c.Condition.Run(ctx) }

// identity returns the identity of the Node in the datastore.
func (c *Condition) identity() string {
	if n := model.Get[model.Node](c.Tables.Snapshot(), model.ResourceKey(model.KindNode, c.Deps.Node.Name)); n != nil {
		return string(n.UID)
	}
	return ""
}

// Notices report that the condition could not be written.
func (c *Condition) Notices() []server.Notice {
	err := c.Problem()
	if err == nil {
		return nil
	}
	return []server.Notice{{Topic: "node", Subject: c.Condition.Node,
		Text: "the condition NetworkUnavailable cannot be written in Kubernetes: " + err.Error()}}
}
