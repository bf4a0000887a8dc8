// Package bgpsecrets reads the MD5 passwords of BGP sessions (RFC 2385) from Kubernetes' Secrets, and follows them.
package bgpsecrets

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/manxnet/manx/bgp/password"
	"github.com/manxnet/manx/daemon/kubewatch"
)

const (
	// patience is the total time that the first reads wait for the API: otherwise, sessions would stay down at a start
	// because of a slightly late response, and their peers' routes would be lost.
	patience = 5 * time.Second
	// quiet is the time that the API may fail to answer without a report: it may be restarting.
	quiet = 30 * time.Second
	// forget is the time that a Secret is followed after its last use.
	forget = 5 * time.Minute
)

// Secrets is a bgp.PasswordSource over the Secrets of one namespace. It reads only the requested Secrets, each by its
// name, so that a role may be limited to them.
//
// A password stays in use for the life of the process, also if its Secret is deleted or may not be read any more: a
// session must never lose its protection because of that.
type Secrets struct {
	namespace string
	client    typedcorev1.SecretInterface
	log       *zap.Logger
	changed   chan struct{}
	ctx       context.Context // of those who follow a Secret
	stop      context.CancelFunc

	begin     sync.Once
	giveUp    func()        // closes impatient
	impatient chan struct{} // closed when no first read waits any more

	mu       sync.Mutex
	followed map[string]*followed // by the name of the Secret
	good     map[ref]string
	kept     map[ref]string // of an earlier process, until the API answers
	file     *file
	unkept   string // why passwords are not kept, as logged
}

// Config has the parameters of Secrets.
type Config struct {
	Client    typedcorev1.SecretsGetter
	Namespace string
	// File keeps the passwords for a restart while the API does not answer, if it is in a file system in memory.
	File   string
	Server string // address of the API to which the passwords belong
	Log    *zap.Logger
}

var errNoAnswer = errors.New("the Kubernetes API has not answered yet")

type ref struct{ secret, key string }

// followed is the last known state of a Secret.
type followed struct {
	stop      context.CancelFunc
	named     time.Time     // time of the last request for a password in it
	requested bool          // in the current decision
	wanted    bool          // in the last decision
	reported  bool          // then, that changes are not seen
	answered  chan struct{} // closed with the first answer of the API

	known   bool
	data    map[string][]byte // nil: there is no such Secret
	err     error             // why it cannot be read now
	errored time.Time         // when that began
}

// New returns the Secrets of a namespace; Close ends its goroutines.
func New(c Config) *Secrets {
	ctx, stop := context.WithCancel(context.Background())
	s := &Secrets{namespace: c.Namespace, client: c.Client.Secrets(c.Namespace), log: c.Log,
		changed: make(chan struct{}, 1), ctx: ctx, stop: stop, impatient: make(chan struct{}),
		followed: map[string]*followed{}, good: map[ref]string{},
		file: &file{path: c.File, server: c.Server, namespace: c.Namespace}}
	s.giveUp = sync.OnceFunc(func() { close(s.impatient) })
	var err error
	if s.kept, err = s.file.read(); err != nil {
		c.Log.Warn("passwords of an earlier run cannot be used", zap.Error(err))
	}
	return s
}

// Hurry ends the waits for the first answer of the API: passwords of an earlier run are used until it comes.
func (s *Secrets) Hurry() { s.giveUp() }

// Close ends all goroutines.
func (s *Secrets) Close() { s.stop() }

// Changed receives when passwords may have changed.
func (s *Secrets) Changed() <-chan struct{} { return s.changed }

// troublePoll is the interval between checks, while the API cannot be read, whether that has lasted long enough to
// report.
const troublePoll = 10 * time.Second

// EndDecision ends the calls of Password for one decision: the Secrets that it named are followed until another
// decision does not name them. It returns the interval between calls of Outdated until then: 0, for none, while the API
// answers, since its watch reports changes.
func (s *Secrets) EndDecision() (period time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.followed {
		f.wanted, f.requested = f.requested, false
		if f.wanted && f.err != nil {
			period = troublePoll
		}
	}
	s.keep()
	return period
}

// keep keeps the passwords of the last decision for the next process.
func (s *Secrets) keep() {
	list := maps.Clone(s.good)
	for at, password := range s.kept {
		if list[at] == "" {
			list[at] = password
		}
	}
	maps.DeleteFunc(list, func(at ref, _ string) bool { f := s.followed[at.secret]; return f == nil || !f.wanted })
	text := ""
	if err := s.file.write(list); err != nil {
		text = err.Error()
	}
	if text != s.unkept && text != "" {
		s.log.Warn("passwords are not kept for a restart without the Kubernetes API", zap.String("reason", text))
	}
	s.unkept = text
}

// Outdated reports whether the API's state has changed since the last decision. Changed reports all other changes.
func (s *Secrets) Outdated() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.followed {
		if f.wanted && f.reported != (f.trouble() != nil) {
			return true
		}
	}
	return false
}

// Place returns the place of a password, for messages.
func (s *Secrets) Place(secret, key string) string {
	return fmt.Sprintf("key %q of the Secret %s/%s", key, s.namespace, secret)
}

// Password returns the value of a key of a Secret, without a line end. An error explains why it cannot be read now. A
// password with an error is the last known one, and is to be used.
func (s *Secrets) Password(secret, key string) (string, error) {
	if problems := validation.NameIsDNSSubdomain(secret, false); len(problems) > 0 {
		return "", fmt.Errorf("%q cannot be the name of a Secret: %s", secret, problems[0])
	}
	s.begin.Do(func() { time.AfterFunc(patience, s.giveUp) })
	f := s.follow(secret)
	select {
	case <-f.answered:
	case <-s.impatient:
	case <-s.ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	at := ref{secret, key}
	f.reported = f.trouble() != nil
	password, err := f.password(s.namespace, at)
	if password != "" {
		s.good[at] = password
	}
	if f.known {
		delete(s.kept, at)
	}
	return cmp.Or(s.good[at], s.kept[at]), err
}

// password returns the Secret's password, perhaps together with an error.
func (f *followed) password(namespace string, at ref) (string, error) {
	if !f.known {
		return "", cmp.Or(f.err, errNoAnswer)
	}
	if f.data == nil {
		return "", errors.Join(fmt.Errorf("there is no Secret %s/%s", namespace, at.secret), f.trouble())
	}
	content, ok := f.data[at.key]
	if !ok {
		return "", fmt.Errorf("the Secret %s/%s has no such key", namespace, at.secret)
	}
	value, err := password.Valid(string(content), fmt.Sprintf("key %q of the Secret %s/%s", at.key, namespace,
		at.secret))
	return value, errors.Join(err, f.trouble())
}

// trouble returns the reason why changes of a known Secret are not seen. A short failure of the API is none.
func (f *followed) trouble() error {
	if f.err == nil || !refused(f.err) && time.Since(f.errored) < quiet {
		return nil
	}
	return f.err
}

func refused(err error) bool { return apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) }

// follow returns a Secret, and follows it from now on.
func (s *Secrets) follow(name string) *followed {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.followed[name]
	if f == nil {
		f = &followed{answered: make(chan struct{})}
		s.followed[name] = f
		var ctx context.Context
		ctx, f.stop = context.WithCancel(s.ctx)
		go s.run(ctx, name, f)
	}
	f.named, f.requested = time.Now(), true
	return f
}

func (s *Secrets) run(ctx context.Context, name string, f *followed) {
	kubewatch.Follow(ctx, kubewatch.Selection[*corev1.Secret]{
		Options: metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", name).String()},
		List: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return s.client.List(ctx, o)
		},
		Watch: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return s.client.Watch(ctx, o)
		},
		Show: func(list []*corev1.Secret) {
			var data map[string][]byte
			if len(list) > 0 {
				data = map[string][]byte{}
				for key, value := range list[0].Data {
					data[key] = value
				}
			}
			s.change(f, func() { f.known, f.data = true, data })
		},
		Failed: func(err error) { s.change(f, func() { f.fail(err) }) },
	})
}

func (f *followed) fail(err error) {
	if err != nil && f.err == nil {
		f.errored = time.Now()
	}
	f.err = err
}

// change applies a response of the API to a Secret, and notifies the users of passwords.
func (s *Secrets) change(f *followed, change func()) {
	s.mu.Lock()
	change()
	select {
	case <-f.answered:
	default:
		close(f.answered)
	}
	s.mu.Unlock()
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// Run stops watches of Secrets that are unused, until ctx ends.
func (s *Secrets) Run(ctx context.Context) error {
	tick := time.NewTicker(forget / 5)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
			s.forgetUnnamed(time.Now().Add(-forget))
		}
	}
}

func (s *Secrets) forgetUnnamed(since time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, f := range s.followed {
		if !f.requested && !f.wanted && f.named.Before(since) {
			f.stop()
			delete(s.followed, name)
			s.log.Debug("a Secret is not followed any more", zap.String("secret", name))
		}
	}
}
