// Package controllers does the work of calico-kube-controllers in one manxd of the cluster: it elects that manxd,
// follows KubeControllersConfiguration, and runs the controllers of its folders.
package controllers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/manxnet/manx/controllers/deletions"
	"github.com/manxnet/manx/controllers/ipamaudit"
	"github.com/manxnet/manx/controllers/ipamgc"
	"github.com/manxnet/manx/controllers/loop"
	"github.com/manxnet/manx/controllers/migration"
	"github.com/manxnet/manx/controllers/settings"
	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/retry"
)

// election is the name of the election.
const election = "controllers"

// Kube has the controllers' requests to the Kubernetes API.
type Kube interface {
	ipamgc.Pods
	// Others names other running controllers with the same tasks, empty for none.
	Others(ctx context.Context) (string, error)
	// Ending names a pod of Manx, or of other controllers that are not to stay, which has not ended yet; empty for
	// none.
	Ending(ctx context.Context) (string, error)
	// OldNodes names agents that may not know today's names of policies, empty for none.
	OldNodes(ctx context.Context) (string, error)
	// Behind names agents that do not use custom resources of projectcalico.org/v3, empty for none.
	Behind(ctx context.Context) (string, error)
	// Objects returns the client for objects of all kinds.
	Objects() migration.API
	// Services returns the client for services and namespaces.
	Services() corev1client.CoreV1Interface
}

// Config has the parameters of a Manager.
type Config struct {
	// Node is the name of this candidate.
	Node  string
	Store datastore.Backend
	// Kube is the Kubernetes API, nil if there is none.
	Kube Kube
	// InKubernetes is set if Store is the Kubernetes API; otherwise Source opens it as a Store, for a leader.
	InKubernetes bool
	Source       func(context.Context) (datastore.Store, error)
	// NoIPAM is set if another program assigns pods' addresses, so that there is nothing to collect or to assign.
	NoIPAM bool
	// Always makes the controllers run even beside calico-kube-controllers.
	Always bool
	Env    settings.Env
	// Compactor compacts the datastore, nil if the datastore compacts itself or keeps no old revisions.
	Compactor datastore.Compactor
	Log       *zap.Logger
	// Report, if set, receives again and again the custom resources that break a rule for writers, with the rules.
	Report func(map[corev1.ObjectReference]string)
	// Ended is called when controllers have ended and nothing refers to their tables any more; may be nil.
	Ended func()
	// CheckInterval is the interval between checks for other controllers; default 30 s.
	CheckInterval time.Duration
	// Drain is the time from the lock of a datastore that is migrated until its objects are copied; default 10 s.
	Drain time.Duration
}

// Manager is one candidate.
type Manager struct {
	Config
	counts   loop.Counts
	releases *ipamgc.Releases
	audit    ipamaudit.Auditor
	migrated migration.Metrics

	mu        sync.Mutex // guards the following fields
	state     State
	collector *ipamgc.Collector // while it runs
}

// State is the state of a Manager.
type State struct {
	// Leading is set if it leads, since Since.
	Leading bool
	Since   time.Time
	// Yielding names the controllers to which it leaves the work, Problem the reason why it cannot do it.
	Yielding, Problem string
	// Unread is the reason why broken rules of some objects are not reported, although the controllers work.
	Unread string
	// Migration is the reason why a migration between the API groups does not go on.
	Migration string
	// Controllers are the running ones.
	Controllers []string
}

// New returns a manager.
func New(c Config) *Manager {
	if c.CheckInterval == 0 {
		c.CheckInterval = 30 * time.Second
	}
	if c.Drain == 0 {
		c.Drain = 10 * time.Second
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

// Audit returns the last audit of IPAM, an empty one where none runs.
func (m *Manager) Audit() ipamaudit.Report { return m.audit.Last() }

// Leader returns the leading node, empty for none. It fails if ctx ends before the datastore answers.
func (m *Manager) Leader(ctx context.Context) (string, error) {
	if m.State().Leading {
		return m.Node, nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	name, ok := <-m.Store.Observe(ctx, election)
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
		l, err := m.Store.Campaign(ctx, election, m.Node)
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

// Leave removes the finalizers that the controllers have given, for a cluster that Manx leaves, and returns their
// number. It leads the election, and waits until no pod of Manx is left: another candidate would lead afterwards, and
// give them again. It does not know candidates outside of pods. While calico-kube-controllers are to run the finalizers
// are theirs and stay; others has their place then.
func (m *Manager) Leave(ctx context.Context) (removed int, others string, err error) {
	l, err := m.Store.Campaign(ctx, election, m.Node)
	if err != nil {
		return 0, "", err
	}
	defer l.Resign(context.WithoutCancel(ctx)) //nolint:errcheck // else the lease runs out
	if err = m.waitForPods(l.Context()); err != nil {
		return 0, "", err
	}
	if others, err = m.Kube.Others(l.Context()); err != nil || others != "" {
		return 0, others, err
	}
	removed, err = deletions.Release(l.Context(), m.Store)
	return removed, "", err
}

// waitForPods waits until pods that may give finalizers have ended.
func (m *Manager) waitForPods(ctx context.Context) error {
	for said := ""; ; retry.Sleep(ctx, min(m.CheckInterval, 2*time.Second)) {
		pod, err := m.Kube.Ending(ctx)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil || pod == "" {
			return err
		}
		if pod != said {
			m.Log.Info("the finalizers stay until it has ended", zap.String("pod", pod))
			said = pod
		}
	}
}

// lead works while no other controllers have the same tasks.
func (m *Manager) lead(ctx context.Context) error {
	for ctx.Err() == nil {
		if m.yields(ctx) {
			retry.Sleep(ctx, m.CheckInterval)
			continue
		}
		err := m.workUntilOthersCome(ctx)
		if m.Ended != nil {
			m.Ended()
		}
		if err != nil && ctx.Err() == nil {
			m.set(func(s *State) { s.Problem = err.Error() })
			m.Log.Warn("the controllers cannot work, trying again", zap.Error(err))
			retry.Sleep(ctx, 5*time.Second)
		}
	}
	return context.Cause(ctx)
}

// yields reports whether to leave the work to other controllers.
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
		case <-time.After(m.CheckInterval):
		}
		if m.yields(ctx) {
			cancel()
			<-done
			m.set(func(s *State) { s.Unread, s.Controllers = "", nil })
			return nil
		}
	}
}

// work runs the configured controllers until ctx ends or the datastore fails permanently.
func (m *Manager) work(ctx context.Context) error {
	w := &worker{Manager: m, running: map[string]*running{}}
	if err := w.open(ctx); err != nil {
		return fmt.Errorf("the Kubernetes API: %w", err)
	}
	defer w.close()
	return w.run(ctx)
}
