package main

import (
	"github.com/spf13/cobra"

	"github.com/manxnet/manx/datastore/table"
)

func (c *cli) validateCommand() *cobra.Command {
	var f files
	var ns namespaces
	var output string
	var accept accepted
	cmd := &cobra.Command{
		Use:   "validate -f FILE",
		Short: "Check files without a datastore, for the CI of a repository",
		Long: `Check files as "apply --dry-run" does, without a datastore: syntax, fields, the rules for values, pools that overlap
each other, and settings that manxd would not use. Each error has file, line, field, and what would be right. A setting
of Calico that keeps nodes from becoming ready is an error, unless --accept-settings names it; others that Manx does not
have are warnings.

Rules that need the objects of a cluster, such as the tier of a policy, are those of "apply --dry-run=server".

Exit codes: 0 all are valid; 1 an error in a file; 2 usage.`,
		Example: "  manxctl validate -f pool.yaml\n  manxctl validate -f cluster/ -R",
		Args:    filesOnly,
		RunE: func(*cobra.Command, []string) error {
			if len(f.paths) == 0 {
				return usagef("validate needs -f FILE, -f FOLDER or -f -")
			}
			format, err := table.ParseFormat(output, outcomeFormats...)
			if err != nil {
				return usagef("%v", err)
			}
			ns.context = c.namespace
			docs, errs := c.loadGood(f, ns)
			if errs = append(errs, foreign(docs)...); len(errs) > 0 {
				return c.report(append(errs, invalid(docs)...))
			}
			return c.checkAll(docs, accept, c.outcomes(format, dryNo))
		},
	}
	f.add(cmd)
	accept.add(cmd)
	cmd.Flags().BoolVar(&f.skipEmpty, "skip-empty", false, "files without an object are no error")
	outputFlag(cmd, &output, outcomeFormats...)
	cmd.Flags().StringVarP(&ns.name, "namespace", "n", "", "namespace of documents that name none (\"default\" "+
		"if not given)")
	return cmd
}
