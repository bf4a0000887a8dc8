package kubernetes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/model"
)

// apiError is a datastore error with the server's text.
type apiError struct {
	is   error
	text string
}

func (e *apiError) Error() string        { return e.text }
func (e *apiError) Is(target error) bool { return e.is != nil && target == e.is }

// keyError wraps the error of an operation on key.
func (s *Store) keyError(ctx context.Context, op string, key model.Key, err error) error {
	return &datastore.KeyError{Op: op, Key: key, Err: s.explain(ctx, err)}
}

// explain converts an error of the client to a datastore error, with a reason for an operator.
func (s *Store) explain(ctx context.Context, err error) error {
	var status apierrors.APIStatus
	switch {
	case err == nil:
		return nil
	case errors.Is(context.Cause(ctx), context.Canceled):
		return context.Canceled
	case errors.As(err, &status):
		return fromStatus(status.Status().Code, err)
	case isOurs(err):
		return err
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%w: %s does not answer in time", datastore.ErrUnavailable, s.host)
	}
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err
	}
	return fmt.Errorf("%w: %s: %w", datastore.ErrUnavailable, s.host, err)
}

// isOurs reports whether an error is already converted.
func isOurs(err error) bool {
	for _, e := range []error{datastore.ErrNotFound, datastore.ErrExists, datastore.ErrConflict,
		datastore.ErrUnauthorized, datastore.ErrUnavailable} {
		if errors.Is(err, e) {
			return true
		}
	}
	var invalid *model.InvalidError
	var local *apiError
	return errors.As(err, &invalid) || errors.As(err, &local)
}

func fromStatus(code int32, err error) error {
	text := strings.TrimSpace(err.Error())
	switch {
	case isGone(err):
		return &apiError{datastore.ErrUnavailable, text}
	case strings.Contains(text, "failed to find resource referenced by paramKind"),
		strings.Contains(text, "not yet synced to use for admission"):
		// An admission policy is older than the definition of its parameters, or the API server has not listed these
		// yet, for some seconds of an installation.
		return &apiError{datastore.ErrUnavailable, "the Kubernetes API refuses it for now: " + text}
	case code == http.StatusNotFound:
		return &apiError{datastore.ErrNotFound, cmp.Or(text, datastore.ErrNotFound.Error())}
	case apierrors.IsAlreadyExists(err):
		return datastore.ErrExists
	case code == http.StatusConflict:
		return fmt.Errorf("%w (%s)", datastore.ErrConflict, text)
	case code == http.StatusUnauthorized:
		return fmt.Errorf("%w: %s", datastore.ErrUnauthorized, text)
	case code == http.StatusForbidden:
		return &apiError{datastore.ErrUnauthorized, "the Kubernetes API does not allow it: " + text}
	case code == http.StatusTooManyRequests, code >= http.StatusInternalServerError:
		return fmt.Errorf("%w: the Kubernetes API responds: %s", datastore.ErrUnavailable, text)
	}
	return &apiError{nil, "the Kubernetes API refuses it: " + text}
}
