package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	manxv1 "github.com/manxnet/manx/proto/manx/v1"
	"github.com/manxnet/manx/retry"
)

// The conditions of wait.
const (
	waitReady    = "ready"
	waitSessions = "sessions"
)

// waitPause is the time between two requests.
const waitPause = 200 * time.Millisecond

func (c *cli) waitCommand() *cobra.Command {
	var condition string
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "wait --for=ready",
		Short: "Wait until this node is ready, for scripts",
		Long: `Wait until this node is ready (--for=ready), or until it is ready and all of its BGP sessions are up
(--for=sessions). A manxd that does not run yet is waited for, too.

Exit codes: 0 the condition holds; 2 usage; 4 it did not hold in time, with the reason.`,
		Example: "  manxctl wait --for=ready --timeout=60s\n  manxctl wait --for=sessions --timeout=5s",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !slices.Contains([]string{waitReady, waitSessions}, condition) {
				return usagef("--for %q: want %s or %s", condition, waitReady, waitSessions)
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			for {
				why, err := c.whyNot(ctx, condition)
				switch {
				case err != nil:
					return err
				case why == "":
					return c.printf("%s", condition)
				case !retry.Sleep(ctx, waitPause):
					return &exitErr{exitUnhealthy, fmt.Sprintf("not %s within %s: %s", condition, timeout, why)}
				}
			}
		},
	}
	cmd.Flags().StringVar(&condition, "for", waitReady, waitReady+" or "+waitSessions)
	cmd.Flags().DurationVar(&timeout, "timeout", time.Minute, "longest time to wait")
	_ = cmd.RegisterFlagCompletionFunc("for", cobra.FixedCompletions([]string{waitReady, waitSessions},
		cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// whyNot returns the reason why a condition does not hold, empty if it does.
func (c *cli) whyNot(ctx context.Context, condition string) (string, error) {
	s, peers, _, err := c.queryStatus(ctx)
	var none *noDaemonError
	switch {
	case errors.As(err, &none):
		return err.Error(), nil
	case err != nil:
		return "", err
	case !s.GetReady():
		return strings.Join(unhealthy(s), "; "), nil
	case condition == waitSessions:
		return strings.Join(downSessions(peers), "; "), nil
	}
	return "", nil
}

// downSessions names the sessions that are not up, each with its reason.
func downSessions(peers []*manxv1.Peer) (down []string) {
	for _, p := range peers {
		if p.GetState() != established {
			down = append(down, peerName(p)+": "+strings.Join(present(p.GetState(), p.GetReason()), ": "))
		}
	}
	return down
}
