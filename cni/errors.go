package cni

import (
	"errors"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/manxnet/manx/dataplane/podnet"
)

// Coded gives an error the code that tells a runtime what to do about it: that of an error of CNI in it, 8 to look at
// the namespace, 999 for the rest.
func Coded(err error) *types.Error {
	var coded *types.Error
	switch {
	case errors.As(err, &coded):
		if err == error(coded) {
			return coded
		}
		return types.NewError(coded.Code, err.Error(), "") // with the step that failed, and what came after
	case errors.Is(err, podnet.ErrNoNetns):
		return types.NewError(types.ErrInvalidNetNS, "the container's network namespace cannot be used", err.Error())
	}
	return types.NewError(types.ErrInternal, err.Error(), "")
}

// TryAgain returns an error that may go away by itself.
func TryAgain(what string, err error) error {
	return types.NewError(types.ErrTryAgainLater, what, err.Error())
}
