package install

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"go.uber.org/zap"
)

// Keeper writes the configuration of the CNI plugins when the node can serve them, and keeps their token fresh.
type Keeper struct {
	Folder
	// Name is that of the conflist, OldName that of one which goes when it is there.
	Name, OldName string
	// Conflist is its content.
	Conflist []byte
	// TLS are certificates for etcd, by name; see CopyTLS.
	TLS map[string]string
	// Token gets a token and the kubeconfig with it; nil where there is no Kubernetes API.
	Token func(context.Context) (Credential, error)
	// Refresh is how often the token is refreshed; 0: after a quarter of the time that it has left.
	Refresh time.Duration
	// Check is how often it is checked whether the token is accepted; 0: every five minutes.
	Check time.Duration
	// Ready reports whether the node can serve pods.
	Ready func() bool
	Log   *zap.Logger
}

// Credential is the kubeconfig with a token, and until when that is good.
type Credential struct {
	Kubeconfig []byte
	Expires    time.Time
	// Refused reports whether the API is known not to accept the token: it may be revoked before it expires. Nil: not
	// known.
	Refused func(context.Context) bool
}

const (
	// lookEvery is how often the readiness is looked at, and afterwards whether the conflist is still there.
	lookEvery, lookAgain = 200 * time.Millisecond, 10 * time.Second
	// shortestRefresh bounds how often a token is asked for.
	shortestRefresh = 5 * time.Second
	// checkToken is how long a token that was revoked stays in the file at most, and half of the time at least between
	// two requests of a node for that.
	checkToken = 5 * time.Minute
)

// Run works until ctx ends. An error names the file that could not be written; the file before stays.
func (k *Keeper) Run(ctx context.Context) error {
	for !k.Ready() {
		if err := sleep(ctx, lookEvery); err != nil {
			return err
		}
	}
	if err := k.CopyTLS(k.TLS); err != nil {
		return err
	}
	refresh, refused, tokenErr := k.refresh(ctx)
	if err := k.conflist(); err != nil {
		return err
	}
	if tokenErr != nil {
		return tokenErr // plugins are served by manxd; without it they cannot reach the API
	}
	for check := k.nextCheck(); ; {
		if err := sleep(ctx, min(lookAgain, time.Until(refresh), time.Until(check))); err != nil {
			return err
		}
		if !time.Now().Before(check) {
			check = k.nextCheck()
			if refused != nil && refused(ctx) {
				k.Log.Warn("the Kubernetes API refuses the token of the CNI plugin before it has expired")
				refresh = time.Now()
			}
		}
		if !time.Now().Before(refresh) {
			var err error
			if refresh, refused, err = k.refresh(ctx); err != nil {
				return err
			}
		}
		if !k.Present(k.Name) && k.Ready() {
			if err := k.conflist(); err != nil {
				return err
			}
		}
	}
}

// conflist writes it, as the last of all files: with it the runtime begins to start pods.
func (k *Keeper) conflist() error {
	if err := k.WriteConflist(k.Name, k.Conflist); err != nil {
		return err
	}
	k.Log.Info("network configuration is written", zap.String("file", k.path(k.Name)))
	if k.OldName == "" || k.OldName == k.Name {
		return nil
	}
	return remove(k.path(k.OldName))
}

// nextCheck returns when the token is checked next, not at the same time on all nodes.
func (k *Keeper) nextCheck() time.Time {
	every := cmp.Or(k.Check, checkToken)
	return time.Now().Add(every/2 + rand.N(every/2))
}

// refresh writes the kubeconfig with a new token. It returns when to do so again, and Credential.Refused of the token.
func (k *Keeper) refresh(ctx context.Context) (again time.Time, refused func(context.Context) bool, err error) {
	if k.Token == nil {
		return time.Now().Add(24 * time.Hour), nil, nil
	}
	c, err := k.Token(ctx)
	if err != nil {
		return again, nil, errors.Join(errors.New("no token for the CNI plugin"), err)
	}
	if err := k.WriteKubeconfig(c.Kubeconfig); err != nil {
		return again, nil, err
	}
	k.Log.Info("token of the CNI plugin is written", zap.Time("expires", c.Expires))
	wait := k.Refresh
	if wait <= 0 {
		wait = max(time.Until(c.Expires)/4, shortestRefresh)
	}
	return time.Now().Add(wait + rand.N(wait)), c.Refused, nil // not all nodes at once
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(max(d, 0))
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}
