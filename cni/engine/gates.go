package engine

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"go.uber.org/zap"

	"github.com/manxnet/manx/retry"
)

const (
	gatePause   = 5 * time.Second
	gateTimeout = 30 * time.Second
	// rulesPoll is the poll interval for the first rules after the start of the host.
	rulesPoll = 50 * time.Millisecond
)

// waitForGates polls each configured URL until it answers with success. A workload then starts only after, for
// instance, this node's agent has programmed its policy.
func (c *call) waitForGates(ctx context.Context, pause, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for _, url := range c.conf.ReadinessGates {
		for {
			err := probe(ctx, url)
			if err == nil {
				break
			}
			c.log.Info("waiting for a readiness gate", zap.String("url", url), zap.Error(err))
			if !retry.Sleep(ctx, pause) {
				return types.NewError(types.ErrTryAgainLater, fmt.Sprintf("readiness gate %s does not open", url),
					err.Error())
			}
		}
	}
	return nil
}

// waitForRules waits until the kernel has rules of policy. A process that ends with the call leaves the wait to the
// runtime.
func (c *call) waitForRules(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, gateTimeout)
	defer cancel()
	for {
		err := c.enforced()
		if err == nil || !c.Lasting || !retry.Sleep(ctx, rulesPoll) {
			return err
		}
	}
}

// enforced returns the error of an ADD while the kernel has no rules of policy.
func (c *call) enforced() error {
	if c.Enforced == nil {
		return nil
	}
	if err := c.Enforced(c.conf); err != nil {
		return types.NewError(types.ErrTryAgainLater, "policy is not enforced on this host yet", err.Error())
	}
	return nil
}

// probe succeeds if url answers with a status of 200 to 399.
func probe(ctx context.Context, url string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	client := http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	answer, err := client.Do(request)
	if err != nil {
		return err
	}
	_ = answer.Body.Close()
	if answer.StatusCode < 200 || answer.StatusCode > 399 {
		return errors.New(answer.Status)
	}
	return nil
}
