package engine

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"go.uber.org/zap"

	"github.com/manxnet/manx/cni"
	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/model"
)

// del deletes the endpoint. A missing endpoint is no error.
func (c *call) del(ctx context.Context) error {
	if _, err := c.settle(ctx); err != nil && ctx.Err() != nil {
		return err
	}
	hostIf, err := c.deleteEndpoint(ctx)
	if err != nil {
		return err
	}
	c.reply.Attachment = &cni.Attachment{HostIf: hostIf}
	return c.withoutPodCIDRs()
}

// withoutPodCIDRs returns the configuration for another IPAM plugin to use without the CIDRs of this node.
func (c *call) withoutPodCIDRs() (err error) {
	if !c.conf.OwnIPAM() && c.usesPodCIDRs() {
		c.reply.Config, err = c.putSubnets(everyAddress)
	}
	return err
}

// release releases the addresses of the container, under the names that its handle may have.
func (c *call) release(ctx context.Context) error {
	if _, err := c.settle(ctx); err != nil && ctx.Err() != nil {
		return err
	}
	if c.q.Attachment != nil && c.q.Attachment.Deferred { // Del did not run
		if err := c.deleteOwnEndpoint(ctx); err != nil {
			return err
		}
	}
	return c.releaseAll(ctx)
}

func (c *call) releaseAll(ctx context.Context) error {
	unlock := c.lock(ctx)
	defer unlock()
	err := errors.Join(c.releaseHandle(ctx, c.work.handle()), c.releaseOld(ctx), c.releaseMachine(ctx))
	if err == nil {
		c.log.Info("addresses are released")
	}
	return err
}

// releaseHandle releases all addresses of a handle, counted or not.
func (c *call) releaseHandle(ctx context.Context, handle string) error {
	released, err := c.allocator().ReleaseFromHost(ctx, c.work.Node, handle)
	if c.released(released); err != nil {
		return fmt.Errorf("release handle %s: %w", handle, err)
	}
	return nil
}

func (c *call) releaseOld(ctx context.Context) error {
	_, err := c.allocator().ReleaseByHandle(ctx, c.work.oldHandle())
	if err != nil && !errors.Is(err, model.ErrNotFound) {
		return fmt.Errorf("release handle %s: %w", c.work.oldHandle(), err)
	}
	return nil
}

// deleteEndpoint deletes the endpoint if it is this container's, and returns its host interface. A restarted pod has
// the same endpoint name and interface name: then both belong to the new container. Its interface may exist before its
// endpoint names it, so the name is returned only if no ADD of the pod's next container has begun.
func (c *call) deleteEndpoint(ctx context.Context) (hostIf string, err error) {
	for range writeAttempts {
		stored, err := c.storedEndpoint(ctx)
		if err != nil {
			return "", err
		}
		if stored == nil {
			return "", nil
		}
		e := endpointOf(stored)
		if e != nil && e.Spec.ContainerID != "" && e.Spec.ContainerID != c.q.ContainerID {
			c.log.Info("the WorkloadEndpoint belongs to a newer container and stays",
				zap.String("owner", e.Spec.ContainerID))
			return "", nil
		}
		if e != nil && e.Spec.ContainerID == "" && len(e.Confirmed().Spec.IPNetworks) == 0 &&
			c.store.Keeps(model.KindNamespace) {
			return "", nil // a pod of the Kubernetes API that has no container yet
		}
		if c.ours(stored) && (c.work.Pod == "" || c.newer() == "") {
			hostIf = e.Spec.InterfaceName
		}
		_, err = c.store.Delete(ctx, stored.Key, stored.Revision)
		if err == nil {
			c.confirm(stored.Key)
		}
		switch {
		case err == nil, errors.Is(err, datastore.ErrNotFound):
			return hostIf, nil
		case !errors.Is(err, datastore.ErrConflict):
			return "", err
		}
	}
	return "", fmt.Errorf("the WorkloadEndpoint of container %s changed %d times while it was being deleted",
		c.q.ContainerID, writeAttempts)
}

func (c *call) deleteOwnEndpoint(ctx context.Context) error {
	_, err := c.deleteEndpoint(ctx)
	return err
}

// gc releases the addresses and deletes the endpoints of containers that the runtime does not know any more. It leaves
// those of other networks and other nodes. The kernel removes interfaces with the containers' namespaces.
func (c *call) gc(ctx context.Context) error {
	if err := c.withoutPodCIDRs(); err != nil {
		return err
	}
	handles, err := c.allocator().HostHandles(ctx, c.work.Node)
	if err != nil {
		return err
	}
	valid := map[string]bool{}
	for _, v := range c.q.Valid {
		valid[v.ContainerID] = true
	}
	var problems []error
	for handle, attrs := range handles {
		id, ok := strings.CutPrefix(handle, c.conf.Name+".")
		if !ok || valid[id] || attrs["node"] != c.work.Node || attrs["type"] != "" {
			continue
		}
		// A virtual machine keeps its address beyond its container. Behind a dot is another network or its container.
		if attrs["vmi-name"] != "" || strings.Contains(id, ".") {
			continue
		}
		problems = append(problems, c.collect(ctx, id, attrs))
	}
	return errors.Join(problems...)
}

// collect removes the leftovers of one container, unless a call for it has started meanwhile.
func (c *call) collect(ctx context.Context, id string, attrs map[string]string) error {
	other := *c
	q := *c.q
	q.ContainerID, q.IfName = id, "eth0"
	other.q, other.work.ContainerID, other.work.IfName = &q, id, "eth0"
	other.work.Pod, other.work.Namespace = attrs["pod"], attrs["namespace"]
	if other.work.Pod == "" {
		other.work.Namespace = "default"
	}
	own, leave, err := c.take(ctx, c.conf.Name+" "+id+" eth0")
	if err != nil {
		return err
	}
	defer leave()
	if other.own = own; own.pending != nil {
		return nil
	}
	c.log.Info("collecting what is left of a container", zap.String("container", id))
	return errors.Join(other.deleteOwnEndpoint(ctx), other.release(ctx))
}

// check compares the result of ADD with the datastore, and returns the parameters of the wiring.
func (c *call) check(ctx context.Context) error {
	want := c.q.Previous
	stored, err := c.storedEndpoint(ctx)
	if err != nil {
		return err
	}
	e := endpointOf(stored)
	if e == nil {
		return fmt.Errorf("the WorkloadEndpoint of container %s is missing", c.q.ContainerID)
	}
	if e.Spec.ContainerID != c.q.ContainerID {
		return fmt.Errorf("%s belongs to container %s", stored.Key, e.Spec.ContainerID)
	}
	a := &cni.Attachment{Addresses: want}
	if err := c.describe(a, stored, &facts{}); err != nil {
		return err
	}
	var problems []error
	if have := endpointAddresses(e.Confirmed()); !sameAddresses(have, want) {
		problems = append(problems, fmt.Errorf("%s has addresses %v, ADD returned %v", stored.Key, have, want))
	}
	if a.HostIf != e.Spec.InterfaceName {
		problems = append(problems, fmt.Errorf("%s has interfaceName = %q, want %q", stored.Key, e.Spec.InterfaceName,
			a.HostIf))
	}
	if e.Spec.MAC == "" {
		a.MAC = "" // a Kubernetes pod does not record it
	}
	c.reply.Attachment = a
	if c.conf.OwnIPAM() {
		return errors.Join(append(problems, c.checkAssigned(ctx, want))...)
	}
	c.reply.Config, err = c.resolvePodCIDRs(ctx)
	return errors.Join(append(problems, err)...)
}

// ipamCheck checks that the container still has the addresses that ADD returned.
func (c *call) ipamCheck(ctx context.Context) error { return c.checkAssigned(ctx, c.q.Previous) }
