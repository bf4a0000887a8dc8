package install

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"go.uber.org/zap"

	"github.com/manxnet/manx/retry"
)

// Keeper writes the configuration of the CNI plugins when the node can serve them, and refreshes their token.
type Keeper struct {
	Folder
	// Name is the name of the conflist. OldName is that of a conflist to remove when Name is written; plugins that
	// other programs chained in it move to a new Name.
	Name, OldName string
	// Conflist is its content.
	Conflist []byte
	// TLS are certificates for etcd, by name; see copyTLS.
	TLS map[string]string
	// Token requests a token and returns its kubeconfig; nil if there is no Kubernetes API.
	Token func(context.Context) (Credential, error)
	// Refresh is the interval between token refreshes; 0: a quarter of the token's remaining lifetime.
	Refresh time.Duration
	// Check is the interval between checks whether the API accepts the token; 0: five minutes.
	Check time.Duration
	// Ready reports whether the node can serve pods.
	Ready func() bool
	Log   *zap.Logger
}

// Credential is a kubeconfig with a token, and its expiry.
type Credential struct {
	Kubeconfig []byte
	Expires    time.Time
	// Refused reports whether the API is known to refuse the token, which may be revoked before it expires. Nil: not
	// known.
	Refused func(context.Context) bool
}

const (
	// readyPoll is the interval between checks of the readiness, conflistPoll between later checks that the conflist
	// still exists.
	readyPoll, conflistPoll = 200 * time.Millisecond, 10 * time.Second
	// shortestRefresh is the minimum interval between token requests.
	shortestRefresh = 5 * time.Second
	// checkToken is the longest time that a revoked token stays in the file. A node's checks are at least half of it
	// apart.
	checkToken = 5 * time.Minute
)

// Run runs until ctx ends. An error names the file that could not be written; the previous file stays.
func (k *Keeper) Run(ctx context.Context) error {
	for !k.Ready() {
		if !retry.Sleep(ctx, readyPoll) {
			return ctx.Err()
		}
	}
	if err := k.copyTLS(k.TLS); err != nil {
		return err
	}
	refresh, refused, tokenErr := k.refresh(ctx)
	if err := k.configure(); err != nil {
		return err
	}
	if tokenErr != nil {
		return tokenErr // plugins are served by manxd; without it they cannot reach the API
	}
	for check := k.nextCheck(); ; {
		if !retry.Sleep(ctx, min(conflistPoll, time.Until(refresh), time.Until(check))) {
			return ctx.Err()
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
		if !k.present(k.Name) && k.Ready() {
			if err := k.configure(); err != nil {
				return err
			}
		}
	}
}

// configure writes the conflist, as the last of all files: with it the runtime starts to run pods.
func (k *Keeper) configure() error {
	written, others, err := k.writeConflist(k.Name, k.OldName, k.Conflist)
	if err != nil {
		return err
	}
	what := "network configuration is as it should be"
	if written {
		what = "network configuration is written"
	}
	k.Log.Info(what, zap.String("file", k.path(k.Name)), zap.Strings("pluginsOfOthers", others))
	if k.OldName == "" || k.OldName == k.Name {
		return nil
	}
	return remove(k.path(k.OldName))
}

// nextCheck returns the time of the next token check, which differs between nodes.
func (k *Keeper) nextCheck() time.Time {
	every := cmp.Or(k.Check, checkToken)
	return time.Now().Add(every/2 + rand.N(every/2))
}

// refresh writes the kubeconfig with a new token. It returns the time of the next refresh, and Credential.Refused of
// the token.
func (k *Keeper) refresh(ctx context.Context) (again time.Time, refused func(context.Context) bool, err error) {
	if k.Token == nil {
		return time.Now().Add(24 * time.Hour), nil, nil
	}
	c, err := k.Token(ctx)
	if err != nil {
		return again, nil, errors.Join(errors.New("no token for the CNI plugin"), err)
	}
	if err := k.writeKubeconfig(c.Kubeconfig); err != nil {
		return again, nil, err
	}
	k.Log.Info("token of the CNI plugin is written", zap.Time("expires", c.Expires))
	wait := k.Refresh
	if wait <= 0 {
		wait = max(time.Until(c.Expires)/4, shortestRefresh)
	}
	return time.Now().Add(wait + rand.N(wait)), c.Refused, nil // not all nodes at once
}
