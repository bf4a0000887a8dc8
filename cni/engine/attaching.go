package engine

import (
	"cmp"
	"context"
	"fmt"

	"github.com/containernetworking/cni/pkg/types"
	"go.uber.org/zap"

	"github.com/manxnet/manx/datastore/model"
)

// attaching tracks the ADDs of a pod that are under way. A restarted pod has a new container under the name of the old
// endpoint, and an ADD of the old container may still be running.
type attaching struct {
	pod, hostIf string
	newest      string // container of the latest ADD
	adds        int
}

// attach records the start of an ADD; the returned function records its end. Containers without a pod have an endpoint
// each. It is an error if the ADD of another endpoint with the same host interface is under way.
func (c *call) attach() (ended func(), err error) {
	if c.work.Pod == "" {
		return func() {}, nil
	}
	key, hostIf := c.endpointID(), c.work.hostIf(c.prefix())
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.pods {
		if p.hostIf == hostIf && p.pod != c.work.podID() {
			return nil, c.taken(hostIf, p.pod)
		}
	}
	p := c.pods[key]
	if p == nil {
		p = &attaching{pod: c.work.podID(), hostIf: hostIf}
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
	}, nil
}

// taken returns the error for a host interface that is another pod's.
func (c *call) taken(hostIf, other string) error {
	return fmt.Errorf("the host interface %s of pod %s is in use by %s on this node: the names of the two have the "+
		"same hash; give one of them another name", hostIf, c.work.podID(), other)
}

// checkInterface returns an error if the pod's host interface exists and is another live pod's: its name is a hash of
// 44 bits of the pod's name, and the ADD would replace it. An interface that no pod has is left over, and is replaced;
// so is the pod's own, of an earlier container.
func (c *call) checkInterface(ctx context.Context, stored *model.Object) error {
	if c.work.Pod == "" || c.HasInterface == nil {
		return nil
	}
	hostIf := c.work.hostIf(c.prefix())
	if exists, err := c.HasInterface(hostIf); err != nil || !exists {
		return err
	}
	err := c.checkHandles(ctx, hostIf)
	switch {
	case err != nil:
		return err
	case c.Lasting || !c.store.Keeps(model.KindNamespace):
		return c.checkEndpoints(ctx, hostIf)
	case !c.conf.OwnIPAM(): // the plugin alone may not list the pods of the Kubernetes API
		c.exclusive = !c.holds(stored, hostIf)
	}
	return nil
}

// checkHandles checks the pods that have addresses of this node's blocks.
func (c *call) checkHandles(ctx context.Context, hostIf string) error {
	if !c.conf.OwnIPAM() {
		return nil
	}
	handles, err := c.allocator().HostHandles(ctx, c.work.Node)
	if err != nil {
		return fmt.Errorf("whose is the host interface %s: %w", hostIf, err)
	}
	for _, attributes := range handles {
		other := workload{Namespace: attributes["namespace"], Pod: attributes["pod"]}
		if other.Pod != "" && other.podID() != c.work.podID() && other.hostIf(c.prefix()) == hostIf {
			return c.taken(hostIf, other.podID())
		}
	}
	return nil
}

// checkEndpoints checks the endpoints of this node.
func (c *call) checkEndpoints(ctx context.Context, hostIf string) error {
	all, _, err := c.store.List(ctx, model.KindWorkloadEndpoint, "")
	if err != nil {
		return fmt.Errorf("whose is the host interface %s: %w", hostIf, err)
	}
	for _, o := range all {
		if !c.holds(o, hostIf) {
			continue
		}
		other := o.Key.Namespace + "/" + cmp.Or(endpointOf(o).Spec.Pod, o.Key.Name)
		if other != c.work.podID() {
			return c.taken(hostIf, other)
		}
	}
	return nil
}

// holds reports whether an endpoint of this node has addresses and this host interface.
func (c *call) holds(o *model.Object, hostIf string) bool {
	e := endpointOf(o)
	return e != nil && e.Spec.Node == c.work.Node && e.Spec.InterfaceName == hostIf && len(e.Spec.IPNetworks) > 0
}

// endpointID identifies the endpoint of a pod on this node.
func (c *call) endpointID() string { return c.work.podID() + " " + c.work.IfName }

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
