package main

import (
	"context"
	"errors"
	"fmt"

	"go.uber.org/zap"

	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/datastore"
)

// del detaches the container. What is gone already is no error; every part is tried although another one failed, and
// the addresses are given back last, so that no one else gets them while the container can still use them.
func (c *call) del(ctx context.Context) error {
	hostIf, err := c.deleteEndpoint(ctx)
	if err != nil {
		return err
	}
	if err := kernel.DetachPod(c.args.Netns, c.args.IfName, hostIf); err != nil {
		return err
	}
	if err := c.releaseAddresses(ctx); err != nil {
		return err
	}
	c.log.Info("detached", zap.String("hostInterface", hostIf))
	return nil
}

// deleteEndpoint removes the endpoint if it is this container's, and returns the host's end that goes with it. A pod
// that was restarted has the same endpoint name: then it belongs to the new container, and so does the interface.
func (c *call) deleteEndpoint(ctx context.Context) (hostIf string, err error) {
	const attempts = 6
	for range attempts {
		stored, err := c.storedEndpoint(ctx)
		if err != nil {
			return "", err
		}
		if stored == nil {
			return "", nil
		}
		e := endpointOf(stored)
		if e != nil && e.Spec.ContainerID != "" && e.Spec.ContainerID != c.args.ContainerID {
			c.log.Info("the WorkloadEndpoint belongs to a newer container and stays", zap.String("owner", e.Spec.ContainerID))
			return "", nil
		}
		if e != nil {
			hostIf = e.Spec.InterfaceName
		}
		_, err = c.store.Delete(ctx, stored.Key, stored.Revision)
		switch {
		case err == nil, errors.Is(err, datastore.ErrNotFound):
			return hostIf, nil
		case !errors.Is(err, datastore.ErrConflict):
			return "", err
		}
	}
	return "", fmt.Errorf("the WorkloadEndpoint of container %s changed %d times while it was being deleted", c.args.ContainerID, attempts)
}

func (c *call) deleteOwnEndpoint(ctx context.Context) error {
	_, err := c.deleteEndpoint(ctx)
	return err
}
