package cni

import (
	"errors"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/manxnet/manx/dataplane/podnet"
)

// Coded gives an error the code that selects the runtime's reaction: the code of a CNI error that it wraps, 8 to check
// the namespace, 999 for the rest.
func Coded(err error) *types.Error {
	var coded *types.Error
	switch {
	case errors.As(err, &coded):
		if err == error(coded) {
			return coded
		}
		return types.NewError(coded.Code, err.Error(), "") // with the failed step, and the clean-up
	case errors.Is(err, podnet.ErrNoNetns):
		return types.NewError(types.ErrInvalidNetNS, "the container's network namespace cannot be used", err.Error())
	}
	return types.NewError(types.ErrInternal, err.Error(), "")
}

// TryAgain returns an error that may be temporary.
func TryAgain(what string, err error) error {
	return types.NewError(types.ErrTryAgainLater, what, err.Error())
}
