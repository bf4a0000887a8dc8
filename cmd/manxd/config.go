package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"github.com/manxnet/manx/datastore/node"
	"github.com/manxnet/manx/proto/server"
)

// configCommand shows the settings, and what they lead to, before manxd starts with them.
func configCommand(o *options) *cobra.Command {
	var path string
	var file envFile
	var shown []server.Setting
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Show the settings",
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) (err error) {
			if file, err = readEnvFile(path); err != nil {
				return err
			}
			shown, err = o.fromEnvironment(cmd.Flags(), file)
			return usage(err)
		},
	}
	cmd.PersistentFlags().StringVar(&path, "env-file", unitSettings, "settings of the systemd unit, which take the "+
		"place of the environment's; a missing file has none; empty: the environment alone")
	cmd.AddCommand(explainCommand(o, &shown, &file), &cobra.Command{
		Use:   "addresses",
		Short: "Print every address of this host, with the reason why it would become the node's or not",
		Long: `Print every address of this host, with the reason why it would become the node's or not.

The command needs no daemon and no datastore. It does not know a Node that is stored: without IP, manxd keeps the
address that the Node has. While manxd runs, "manxctl node addresses" shows its choice.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.printAddresses(cmd.Context(), os.Stdout) },
	})
	return cmd
}

// explainCommand prints settings; shown and file are those that the command's parent has read.
func explainCommand(o *options, shown *[]server.Setting, file *envFile) *cobra.Command {
	var calico, all bool
	cmd := &cobra.Command{
		Use:   "explain",
		Short: "Print every setting with its value and its source",
		Long: `Print every setting of manxd with its value and its source.

With --calico: every setting of Calico that is set here, in the environment, in Felix's file, in the datastore or by
another program of this host, with the value in force, its source, and what Manx does with it. The datastore is that of
the manxd that runs on this host, or of the settings. With --calico --all: every setting that Calico has.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if calico || all {
				if err := o.check(); err != nil {
					return usage(err)
				}
				return o.explainCalico(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), file.get, all)
			}
			explain(cmd.OutOrStdout(), *shown)
			return usage(o.check())
		},
	}
	cmd.Flags().BoolVar(&calico, "calico", false, "the settings of Calico, with what Manx does with each")
	cmd.Flags().BoolVar(&all, "all", false, "with --calico: also those that are not set here")
	return cmd
}

// printAddresses prints the candidates. The error explains why none would be chosen.
func (o *options) printAddresses(ctx context.Context, out io.Writer) error {
	if err := o.check(); err != nil {
		return usage(err)
	}
	config := o.nodeConfig()
	if o.node.detectsFromKubernetes() {
		kube, err := o.kubernetesAPI(zap.NewNop())
		if err != nil {
			return err
		}
		name, _, err := node.Name(o.node.nameSources())
		if kube != nil && err == nil {
			config.Kubernetes, err = kubernetesAddress(kube, cmp.Or(o.node.kubernetesName, name))
		}
		if err != nil {
			return err
		}
	}
	candidates, err := node.Candidates(ctx, config, node.System{})
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "FAMILY\tADDRESS\tINTERFACE\tMETHOD\tCHOSEN\tREASON")
	for _, c := range candidates {
		chosen := ""
		if c.Chosen {
			chosen = "*"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", c.Family, c.Address, c.Interface, c.Method, chosen, c.Reason)
	}
	if flushErr := w.Flush(); flushErr != nil {
		return flushErr
	}
	return err
}
