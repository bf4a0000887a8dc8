package main

import (
	"context"
	"errors"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/datastore"
)

// cniError gives an error the code that tells a runtime what to do about it: 11 to try again, 8 to look at the
// namespace, 999 for the rest.
func cniError(err error) error {
	var coded *types.Error
	switch {
	case errors.As(err, &coded):
		if err == error(coded) {
			return coded
		}
		return types.NewError(coded.Code, err.Error(), "") // with the step that failed, and what came after
	case errors.Is(err, datastore.ErrUnavailable), errors.Is(err, context.DeadlineExceeded):
		return types.NewError(types.ErrTryAgainLater, "the datastore did not answer", err.Error())
	case errors.Is(err, kernel.ErrNoNetns):
		return types.NewError(types.ErrInvalidNetNS, "the container's network namespace cannot be used", err.Error())
	}
	return types.NewError(types.ErrInternal, err.Error(), "")
}

// notReady explains a failed look at the state of the cluster.
func notReady(err error) error {
	if errors.Is(err, datastore.ErrNotFound) {
		return types.NewError(types.ErrTryAgainLater, "the datastore is not ready",
			"ClusterInformation default does not exist: no node has been set up yet")
	}
	return err
}

// invalidConf is an error that only a change of the network configuration mends.
func invalidConf(what, why string) error {
	return types.NewError(types.ErrInvalidNetworkConfig, what, why)
}
