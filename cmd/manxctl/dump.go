package main

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	manxv1 "github.com/manxnet/manx/proto/manx/v1"
)

func (c *cli) dumpCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "dump",
		Short: "Print the state that the local manxd keeps in the kernel",
		Args:  noArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(c.onNodes(c.dumpRulesetCommand(), namedNodes, passOn))
	return cmd
}

func (c *cli) dumpRulesetCommand() *cobra.Command {
	var elements uint32
	cmd := &cobra.Command{
		Use: "ruleset",
		Short: "Print the nftables rules that the local manxd wants; \"nft list table inet manx\" prints " +
			"those in the kernel",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.daemonFor(cmd.Context(), 0, func(ctx context.Context, m manxv1.ManxClient) error {
				r, err := m.GetRuleset(ctx, &manxv1.GetRulesetRequest{Elements: elements})
				if err == nil {
					_, err = io.WriteString(c.out, r.GetText())
				}
				return err
			})
		},
	}
	cmd.Flags().Uint32Var(&elements, "elements", 20, "how many elements of each set to print at most; 0: all")
	return cmd
}
