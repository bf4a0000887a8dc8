package main

import (
	"io"
	"net/url"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/manxnet/manx/cmd/manxctl/archive"
	"github.com/manxnet/manx/cmd/manxctl/fleet"
)

// The nodes whose archives are in memory at a time, how many bytes each may have, and how long it may take.
const (
	diagsAtOnce    = 16
	mostDiags      = 32 << 20
	diagsOfOneNode = 2 * time.Minute
)

// diagsOfNodes writes an archive with the archive of each node, or the reason why there is none. What a node sends is
// not unpacked here.
func diagsOfNodes(r nodesRun, cmd *cobra.Command, output string) error {
	ctx := cmd.Context()
	nodes, err := r.nodes(ctx)
	if err != nil {
		return err
	}
	limit := r.flags.timeout
	if !cmd.Flags().Changed("node-timeout") {
		limit = diagsOfOneNode
	}
	words := []string{"diags", "--output=-"} // whatever its name was here
	var silent []fleet.Answer
	err = r.writeDiags(output, func(w io.Writer) error {
		a := archive.New(w, "manx-diags", time.Now())
		for some := range slices.Chunk(nodes, diagsAtOnce) {
			answers, err := r.cluster.RunOn(ctx, some, limit, mostDiags, words...)
			if err != nil {
				return err
			}
			for _, x := range answers {
				name := url.PathEscape(x.Name)
				if why := whyNone(x); why != "" {
					a.Add(name+".error", []byte(why+"\n"))
					silent = append(silent, x)
					continue
				}
				a.AddRaw(name+".tar.gz", x.Stdout)
			}
		}
		return a.Close()
	})
	if err != nil {
		return err
	}
	if err := writeSections(r.errs, silent); err != nil {
		return err
	}
	return endOf(silent)
}
