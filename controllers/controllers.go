// Package controllers does in one manxd of the cluster what calico-kube-controllers do: it elects the one, follows
// KubeControllersConfiguration, and runs the controllers of its folders.
package controllers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/manxnet/manx/controllers/ipamgc"
	"github.com/manxnet/manx/controllers/loop"
	"github.com/manxnet/manx/controllers/settings"
	"github.com/manxnet/manx/datastore"
)

// Election is the name of the election.
const Election = "controllers"

// Kube has the requests of the controllers to the Kubernetes API.
type Kube interface {
	ipamgc.Pods
	// Others tells which other controllers of the same things run in the cluster, empty if none do.
	Others(ctx context.Context) (string, error)
	// OldNodes tells which agents may not know today's names of policies yet, empty if all do.
	OldNodes(ctx context.Context) (string, error)
	// Services gives access to services and namespaces.
	Services() corev1client.CoreV1Interface
}

// Config has the parameters of a Manager.
type Config struct {
	// Node is the name by which this candidate is known.
	Node  string
	Store datastore.Backend
	// Kube is the Kubernetes API, nil if none is known.
	Kube Kube
	// InKubernetes is whether Store is the Kubernetes API; otherwise Source opens it as a Store, for a leader.
	InKubernetes bool
	Source       func(context.Context) (datastore.Store, error)
	// NoIPAM is whether pods get their addresses from somebody else, so that there is nothing to collect or to give.
	NoIPAM bool
	// Always is whether to work beside calico-kube-controllers, too.
	Always bool
	Env    settings.Env
	// Compactor compacts the datastore, nil if it does so itself or keeps no past.
	Compactor datastore.Compactor
	Log       *zap.Logger
	// Look is the time between two looks for other controllers; default 30 s.
	Look time.Duration
}

// Manager is one candidate.
type Manager struct {
	Config
	counts   loop.Counts
	releases *ipamgc.Releases

	mu        sync.Mutex // guards what follows
	state     State
	collector *ipamgc.Collector // while it runs
}

// State is how a Manager stands.
type State struct {
	// Leading is whether it leads, since Since.
	Leading bool
	Since   time.Time
	// Yielding says to whom it leaves the work, Problem why it cannot do it.
	Yielding, Problem string
	// Controllers are those that run.
	Controllers []string
}

// New returns a manager.
func New(c Config) *Manager {
	if c.Look == 0 {
		c.Look = 30 * time.Second
	}
	return &Manager{Config: c, releases: ipamgc.NewReleases()}
}

// State returns whether this node leads, and its running controllers.
func (m *Manager) State() State {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state
}

// Releases returns the newest releases of addresses and blocks that this candidate made, with their reasons, oldest
// first.
func (m *Manager) Releases() []ipamgc.Release { return m.releases.Last() }

// Leader returns the node that leads, empty if none does. It fails if ctx ends before the datastore answers.
func (m *Manager) Leader(ctx context.Context) (string, error) {
	if m.State().Leading {
		return m.Node, nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	name, ok := <-m.Store.Observe(ctx, Election)
	if !ok {
		return "", fmt.Errorf("it is not known which node runs the controllers, the datastore does not answer: %w",
			cmp.Or(context.Cause(ctx), context.Canceled))
	}
	return name, nil
}

func (m *Manager) set(change func(*State)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change(&m.state)
}

// Run campaigns and leads until ctx ends or the datastore refuses.
func (m *Manager) Run(ctx context.Context) error {
	for {
		l, err := m.Store.Campaign(ctx, Election, m.Node)
		if err != nil {
			return err
		}
		m.Log.Info("this node runs the controllers of the cluster")
		m.set(func(s *State) { *s = State{Leading: true, Since: time.Now()} })
		err = m.lead(l.Context())
		m.set(func(s *State) { *s = State{} })
		if resign := l.Resign(context.WithoutCancel(ctx)); resign != nil {
			m.Log.Warn("the next leader of the controllers has to wait for the lease to run out", zap.Error(resign))
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		m.Log.Warn("this node does not run the controllers any more", zap.Error(err))
		if err != nil && !errors.Is(err, datastore.ErrNotLeading) && !errors.Is(err, context.Canceled) {
			return err
		}
	}
}

// lead works while nobody else does the same.
func (m *Manager) lead(ctx context.Context) error {
	for ctx.Err() == nil {
		if m.yields(ctx) {
			pause(ctx, m.Look)
			continue
		}
		if err := m.workUntilOthersCome(ctx); err != nil && ctx.Err() == nil {
			m.set(func(s *State) { s.Problem = err.Error() })
			m.Log.Warn("the controllers cannot work, trying again", zap.Error(err))
			pause(ctx, 5*time.Second)
		}
	}
	return context.Cause(ctx)
}

// yields reports whether to leave the work to others.
func (m *Manager) yields(ctx context.Context) bool {
	if m.Always || m.Kube == nil {
		return false
	}
	others, err := m.Kube.Others(ctx)
	if err != nil {
		others = "it is not known whether calico-kube-controllers run: " + err.Error()
	}
	if was := m.State().Yielding; was != others {
		m.set(func(s *State) { s.Yielding = others })
		if others != "" {
			m.Log.Info("the controllers of Manx rest", zap.String("reason", others))
		} else {
			m.Log.Info("the controllers of Manx run: no calico-kube-controllers do")
		}
	}
	return others != ""
}

// workUntilOthersCome runs the controllers.
func (m *Manager) workUntilOthersCome(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- m.work(ctx) }()
	for {
		select {
		case err := <-done:
			return err
		case <-time.After(m.Look):
		}
		if m.yields(ctx) {
			cancel()
			<-done
			m.set(func(s *State) { s.Controllers = nil })
			return nil
		}
	}
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// work runs the controllers that the configuration names, until ctx ends or the datastore fails for good.
func (m *Manager) work(ctx context.Context) error {
	w := &worker{Manager: m, running: map[string]*running{}}
	if err := w.open(ctx); err != nil {
		return fmt.Errorf("the Kubernetes API: %w", err)
	}
	defer w.close()
	return w.run(ctx)
}
