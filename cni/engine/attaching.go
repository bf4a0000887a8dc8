package engine

import (
	"fmt"

	"github.com/containernetworking/cni/pkg/types"
	"go.uber.org/zap"

	"github.com/manxnet/manx/datastore/model"
)

// attaching tracks the ADDs of a pod that are under way. A restarted pod has a new container under the name of the old
// endpoint, and an ADD of the old container may still be running.
type attaching struct {
	newest string // container of the latest ADD
	adds   int
}

// attach records the start of an ADD; the returned function records its end. Containers without a pod have an endpoint
// each.
func (c *call) attach() (ended func()) {
	if c.work.Pod == "" {
		return func() {}
	}
	key := c.endpointID()
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.pods[key]
	if p == nil {
		p = &attaching{}
		c.pods[key] = p
	}
	p.newest = c.q.ContainerID
	p.adds++
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if p.adds--; p.adds == 0 {
			delete(c.pods, key)
		}
	}
}

// endpointID identifies the endpoint of a pod on this node.
func (c *call) endpointID() string { return c.work.Namespace + "/" + c.work.Pod + " " + c.work.IfName }

// newer returns the container of a later ADD for the same pod than this call's that is under way, empty for none.
func (c *call) newer() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.pods[c.endpointID()]; p != nil && p.newest != c.q.ContainerID {
		return p.newest
	}
	return ""
}

// mayReplace returns an error if the endpoint is another container's and an ADD for a newer container than this one has
// started: the order of writes does not show which container is newer.
func (c *call) mayReplace(stored *model.Object) error {
	e := endpointOf(stored)
	if e == nil || e.Spec.ContainerID == "" || c.ours(stored) {
		return nil
	}
	newer := c.newer()
	if newer == "" {
		return nil
	}
	c.log.Info("the pod has a newer container", zap.String("newer", newer))
	return types.NewError(types.ErrTryAgainLater,
		fmt.Sprintf("pod %s/%s has a newer container", c.work.Namespace, c.work.Pod),
		fmt.Sprintf("container %s came after container %s, and has the endpoint %s", newer, c.q.ContainerID,
			stored.Key))
}
