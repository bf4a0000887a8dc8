package connect

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/etcd"
	"github.com/manxnet/manx/datastore/kubernetes"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/retry"
)

// way is the method to open one datastore.
type way struct {
	open     func(context.Context, *zap.Logger) (datastore.Backend, error)
	warnings func(now time.Time) []string
}

// way selects the backend: each has its line here.
func (s Settings) way() (way, error) {
	switch s.Type {
	case "", Etcd, Embedded:
		return overEtcd(s.Etcd), nil
	case Kubernetes:
		return overKubernetes(s.Kube), nil
	}
	return way{}, fmt.Errorf("datastore type %q is not known: want %q or %q", s.Type, Etcd, Kubernetes)
}

func overEtcd(c etcd.Config) way {
	return way{warnings: c.Warnings, open: func(ctx context.Context, log *zap.Logger) (datastore.Backend, error) {
		s, err := etcd.Open(ctx, c, log)
		if err != nil {
			return nil, err // and no Backend that is not nil
		}
		return s, nil
	}}
}

func overKubernetes(c kubernetes.Config) way {
	return way{warnings: c.Warnings, open: func(ctx context.Context, log *zap.Logger) (datastore.Backend, error) {
		s, err := kubernetes.Open(ctx, c.OfUser(), log)
		if err != nil {
			return nil, err // and no Backend that is not nil
		}
		return s, nil
	}}
}

// usable reports whether Open supports a type of datastore.
func usable(typ string) bool {
	_, err := Settings{Type: typ}.way()
	return err == nil
}

// Open opens the datastore. Without settings it is the local manxd's; the error Is ErrNoLocal if there is none. An
// error that Is datastore.ErrUnavailable may be temporary, and Open waits for its end if the settings say so; refused
// credentials and unusable settings always fail. The caller closes the result.
func Open(ctx context.Context, s Settings, log *zap.Logger) (datastore.Backend, error) {
	s, err := s.resolve()
	if err != nil {
		return nil, err
	}
	w, err := s.way()
	if err != nil {
		return nil, err
	}
	warn := s.warner(w)
	warn()
	store, err := s.wait(ctx, w, log)
	if err != nil {
		return nil, s.hint(err)
	}
	watching, stop := context.WithCancel(context.WithoutCancel(ctx))
	go every(watching, warnInterval, warn)
	return &opened{Backend: store, stop: stop}, nil
}

// opened is a store that also closes its companions.
type opened struct {
	datastore.Backend
	stop context.CancelFunc
}

// Close implements datastore.Store.
func (o *opened) Close() error {
	o.stop()
	return o.Backend.Close()
}

// Reference refers to the object of the Kubernetes API that holds o, for Events about it; false if there is none.
func (o *opened) Reference(about *model.Object) (corev1.ObjectReference, bool) {
	if k, ok := o.Backend.(*kubernetes.Store); ok {
		return k.Reference(about)
	}
	return corev1.ObjectReference{}, false
}

// retryInterval is the interval between attempts to reach a datastore that does not answer.
const retryInterval = time.Second

// wait opens the store, if necessary after waiting for it.
func (s Settings) wait(ctx context.Context, w way, log *zap.Logger) (datastore.Backend, error) {
	logged := ""
	for {
		store, err := w.open(ctx, log.Named("datastore"))
		if err == nil || !s.Wait || !errors.Is(err, datastore.ErrUnavailable) {
			return store, err
		}
		if s.Waiting != nil {
			s.Waiting(err)
		}
		if text := err.Error(); text != logged {
			logged = text
			log.Warn("waiting for the datastore", zap.Error(err))
		}
		if !retry.Sleep(ctx, retryInterval) {
			return nil, ctx.Err()
		}
	}
}

// warnInterval is the interval between checks of the connection settings for warnings.
const warnInterval = 12 * time.Hour

// warner returns a function that reports each new warning about the connection settings once.
func (s Settings) warner(w way) func() {
	reported := map[string]bool{}
	return func() {
		for _, text := range w.warnings(time.Now()) {
			if !reported[text] && s.Warn != nil {
				reported[text] = true
				s.Warn(text)
			}
		}
	}
}

func every(ctx context.Context, interval time.Duration, do func()) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			do()
		}
	}
}

// Unwrap returns the backend, for methods that only some backends have.
func (o *opened) Unwrap() datastore.Backend { return o.Backend }
