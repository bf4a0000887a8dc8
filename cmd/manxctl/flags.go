package main

import (
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/manxnet/manx/datastore/table"
)

// outputFlag adds -o with the formats that a command knows, the default first.
func outputFlag(cmd *cobra.Command, to *string, allowed ...table.Format) {
	names := make([]string, len(allowed))
	for i, f := range allowed {
		names[i] = string(f)
	}
	cmd.Flags().StringVarP(to, "output", "o", "", strings.Join(names, ", "))
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(names, cobra.ShellCompDirectiveNoFileComp))
}

func itoa(n int) string { return strconv.Itoa(n) }

func utoa(n uint32) string { return strconv.FormatUint(uint64(n), 10) }
