package main

import (
	"context"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	manxv1 "github.com/manxnet/manx/proto/manx/v1"
)

func (c *cli) logLevelCommand() *cobra.Command {
	levels := []string{"debug", "info", "warn", "error"}
	return &cobra.Command{
		Use:               "loglevel [LEVEL]",
		Short:             "Show or change the log level of the local manxd: debug, info, warn or error",
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: cobra.FixedCompletions(levels, cobra.ShellCompDirectiveNoFileComp),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 && !slices.Contains(levels, args[0]) {
				return usagef("log level %q: want debug, info, warn or error", args[0])
			}
			return c.daemon(cmd.Context(), func(ctx context.Context, m manxv1.ManxClient) error {
				if len(args) == 0 {
					r, err := m.GetLogLevel(ctx, &manxv1.GetLogLevelRequest{})
					if err == nil {
						_, err = fmt.Fprintln(c.out, r.GetLevel())
					}
					return err
				}
				r, err := m.SetLogLevel(ctx, &manxv1.SetLogLevelRequest{Level: args[0]})
				if err == nil {
					_, err = fmt.Fprintf(c.out, "log level is %s, was %s\n", args[0], r.GetPrevious())
				}
				return err
			})
		},
	}
}

func (c *cli) resyncCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "resync",
		Short: "Compare the kernel with the wanted state now, and repair it",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.daemon(cmd.Context(), func(ctx context.Context, m manxv1.ManxClient) error {
				r, err := m.Resync(ctx, &manxv1.ResyncRequest{})
				for _, line := range r.GetResults() {
					if _, err := fmt.Fprintln(c.out, line); err != nil {
						return err
					}
				}
				return err
			})
		},
	}
}
