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

	"github.com/manxnet/manx/cmd/manxctl/fleet"
	manxv1 "github.com/manxnet/manx/proto/manx/v1"
)

// healthTimeout is the time in which each part of the daemon answers, as for /livez.
const healthTimeout = 5 * time.Second

func (c *cli) healthCommand() *cobra.Command {
	var live, ready, cluster bool
	namespace := fleet.DefaultNamespace
	cmd := &cobra.Command{
		Use:   "health",
		Short: "Check the health of manxd, for probes",
		Long: "Check the health of manxd as its paths /livez (--live) and /readyz (--ready, the default) do,\n" +
			"for the probes of Kubernetes. It asks the control socket, which no other user can take, and not a\n" +
			"TCP port.\n\n" +
			"With --cluster it reads the DaemonSet manx-node of a Kubernetes cluster: whether manxd is ready on\n" +
			"all nodes. `helm test` does that.\n\n" +
			"The exit code is 4 if the check fails, or if manxd does not answer within five seconds.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			check := c.ready
			switch {
			case live && ready:
				return usagef("--live and --ready exclude each other")
			case live && cluster:
				return usagef("--live is about one manxd, --cluster about all")
			case cluster:
				return c.clusterReady(cmd.Context(), namespace)
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
	cmd.Flags().BoolVar(&cluster, "cluster", false, "whether all nodes of a Kubernetes cluster are ready")
	cmd.Flags().StringVar(&namespace, "manx-namespace", namespace, "with --cluster: namespace of manx-node")
	return cmd
}

// clusterReady fails unless manx-node is ready on all nodes of a cluster.
func (c *cli) clusterReady(ctx context.Context, namespace string) error {
	kube, err := c.kubeconfig()
	if err != nil {
		return err
	}
	rest, err := kube.REST()
	if err != nil {
		return err
	}
	cluster, err := fleet.Open(rest, namespace)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, nodeTimeout)
	defer cancel()
	ready, want, err := cluster.Ready(ctx)
	if err != nil {
		return err
	}
	text := fmt.Sprintf("%d of %d nodes are ready", ready, want)
	if ready < want || want == 0 {
		return &exitErr{exitUnhealthy, text + ": kubectl -n " + namespace +
			" get pods -l k8s-app=manx-node -o wide shows which"}
	}
	_, err = fmt.Fprintln(c.out, text)
	return err
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
