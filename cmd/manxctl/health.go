package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health/grpc_health_v1"

	manxv1 "github.com/manxnet/manx/proto/manx/v1"
)

// healthTimeout is the time in which each part of the daemon answers, as for /livez.
const healthTimeout = 5 * time.Second

func (c *cli) healthCommand() *cobra.Command {
	var live, ready bool
	cmd := &cobra.Command{
		Use:   "health",
		Short: "Check the health of manxd, for probes",
		Long: "Check the health of manxd as its paths /livez (--live) and /readyz (--ready, the default) do,\n" +
			"for the probes of Kubernetes. It asks the control socket, which no other user can take, and not a\n" +
			"TCP port.\n\n" +
			"The exit code is 4 if the check fails, or if manxd does not answer within five seconds.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			check := c.ready
			switch {
			case live && ready:
				return usagef("--live and --ready exclude each other")
			case live:
				check = c.live
			}
			err := check(cmd.Context())
			var none *noDaemonError
			if errors.As(err, &none) {
				return &exitErr{exitUnhealthy, err.Error()}
			}
			if err == nil {
				_, err = fmt.Fprintln(c.out, "ok")
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&live, "live", false, "whether each part of manxd answers; else only a new process helps")
	cmd.Flags().BoolVar(&ready, "ready", false, "whether the node is ready")
	return cmd
}

// live fails if a part of the daemon does not answer: the health service asks each of them. What it answers is about
// readiness.
func (c *cli) live(ctx context.Context) error {
	return c.call(ctx, healthTimeout, func(ctx context.Context, conn grpc.ClientConnInterface) error {
		_, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{})
		return err
	})
}

// ready fails with the failed checks.
func (c *cli) ready(ctx context.Context) error {
	return c.daemonFor(ctx, healthTimeout, func(ctx context.Context, m manxv1.ManxClient) error {
		s, err := m.GetStatus(ctx, &manxv1.GetStatusRequest{})
		if err != nil || s.GetReady() {
			return err
		}
		failed := []string{"not ready"}
		for _, check := range s.GetChecks() {
			if !check.GetOk() {
				failed = append(failed, check.GetName()+": "+check.GetReason())
			}
		}
		return &exitErr{exitUnhealthy, strings.Join(failed, "\n")}
	})
}
