// Command manxd is the Manx daemon: it turns this host into a Calico-compatible network node.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"syscall"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"github.com/manxnet/manx/daemon/restarts"
	"github.com/manxnet/manx/proto/server"
)

// Set by the linker.
var (
	version = "dev"
	commit  = "unknown"
)

func main() {
	crashBySignal()
	runtime.MemProfileRate = 0 // nothing reads the profile of allocations, whose records take 1.5 MB
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if cmd, err := rootCommand().ExecuteContextC(ctx); err != nil {
		printError(cmd, err)
		os.Exit(exitCode(err))
	}
	// BGP sessions are not closed: the end of the process does that without a NOTIFICATION, so that peers keep our
	// routes until the next start (RFC 4724).
	os.Exit(0)
}

// exitCode returns the exit code for an error.
func exitCode(err error) int {
	var wrong *usageError
	var again *againError
	switch {
	case errors.As(err, &wrong):
		return 2
	case errors.As(err, &again):
		return restarts.Again
	}
	return 1
}

// printError prints the error with which the process ends. Those of a process that logs JSON are a line of its log.
func printError(cmd *cobra.Command, err error) {
	if cmd.Annotations[logsAnnotation] != "" && logFormat(cmd.Flag(logFormatFlag).Value.String()) == "json" {
		if log, _, logErr := newLogger(logOptions{"info", "json"}, newLogLines()); logErr == nil {
			log.Error("manxd ends", zap.Error(err))
			return
		}
	}
	fmt.Fprintln(os.Stderr, "manxd:", err)
}

// logsAnnotation marks the commands that run until they are ended, and log.
const logsAnnotation = "logs"

// usageError is an invalid setting, for which a restart is useless. The exit code is 2.
type usageError struct{ error }

func (e *usageError) Unwrap() error { return e.error }

func usage(err error) error {
	if err == nil {
		return nil
	}
	return &usageError{err}
}

func rootCommand() *cobra.Command {
	var o options
	var shown []server.Setting
	root := &cobra.Command{
		Use:         "manxd",
		Annotations: map[string]string{logsAnnotation: "yes"},
		Short:       "Calico-compatible node networking in one process, without BIRD",
		Long: `manxd registers this host in the Calico datastore, runs its BGP sessions, programs its routes and the
IPIP device, enforces policy, and serves the CNI plugin. When it ends, it leaves routes and rules in the kernel.

Every setting is a flag or the environment variable in brackets behind it.`,
		Args:          func(cmd *cobra.Command, args []string) error { return usage(cobra.NoArgs(cmd, args)) },
		Version:       fmt.Sprintf("%s (%s)", version, commit),
		SilenceUsage:  true,
		SilenceErrors: true,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			shown, err = o.fromEnvironment(cmd.Flags(), envFile{})
			return usage(err)
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(); err != nil {
				return usage(err)
			}
			return run(cmd.Context(), o, shown)
		},
	}
	o.flags(root.PersistentFlags())
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usage(err) })
	root.AddCommand(configCommand(&o), cleanupCommand(&o), clientCertificateCommand(&o), controllersCommand(&o, &shown),
		componentCommand(),
		&cobra.Command{
			Use:   "version",
			Short: "Print the version",
			Args:  cobra.NoArgs,
			Run: func(*cobra.Command, []string) {
				fmt.Printf("manxd %s (%s)\n", version, commit)
			},
		})
	return root
}
