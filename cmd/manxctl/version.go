package main

import (
	"context"
	"fmt"
	"runtime"
	"strings"

	"github.com/spf13/cobra"

	"github.com/manxnet/manx/datastore/table"
	manxv1 "github.com/manxnet/manx/proto/manx/v1"
)

// versions is the output of "version -o json".
type versions struct {
	Client versionInfo  `json:"client"`
	Daemon *versionInfo `json:"daemon,omitempty"`
	Reason string       `json:"daemonReason,omitempty"` // why the daemon's version is missing
}

type versionInfo struct {
	Version string `json:"version"`
	Commit  string `json:"commit"`
	GoBGP   string `json:"gobgp,omitempty"`
	Go      string `json:"go"`
}

// clientVersion is that of this program.
func clientVersion() versionInfo {
	return versionInfo{Version: version, Commit: commit, Go: strings.TrimPrefix(runtime.Version(), "go")}
}

func (v versionInfo) line() string {
	return fmt.Sprintf("%s (commit %s, Go %s)\n", v.Version, v.Commit, v.Go)
}

func (c *cli) versionCommand() *cobra.Command {
	var output string
	var clientOnly bool
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Show the version of manxctl, of the local manxd and of its GoBGP",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			format, err := table.ParseFormat(output, table.Table, table.JSON, table.YAML)
			if err != nil {
				return usagef("%v", err)
			}
			v := versions{Client: clientVersion()}
			if remote, _ := c.remote(); c.plugin && remote == nil && !c.socketFlag.Changed {
				clientOnly = true // "status" has the versions of the nodes
			}
			if !clientOnly {
				c.daemonVersion(cmd.Context(), &v)
			}
			if format != table.Table {
				return table.Value(c.out, format, v)
			}
			return c.printVersions(v)
		},
	}
	outputFlag(cmd, &output, table.Table, table.JSON, table.YAML)
	cmd.Flags().BoolVar(&clientOnly, "client", false, "only the version of manxctl")
	return cmd
}

// daemonVersion queries the daemon; a missing daemon is no error of this command.
func (c *cli) daemonVersion(ctx context.Context, v *versions) {
	err := c.daemon(ctx, func(ctx context.Context, m manxv1.ManxClient) error {
		s, err := m.GetStatus(ctx, &manxv1.GetStatusRequest{})
		if err != nil {
			return err
		}
		d := s.GetVersion()
		v.Daemon = &versionInfo{Version: d.GetManx(), Commit: d.GetCommit(), GoBGP: d.GetGobgp(),
			Go: strings.TrimPrefix(d.GetGo(), "go")}
		return nil
	})
	if err != nil {
		v.Reason = err.Error()
	}
}

func (c *cli) printVersions(v versions) error {
	text := "Client: " + v.Client.line()
	switch {
	case v.Daemon != nil:
		text += fmt.Sprintf("Daemon: %sGoBGP:  %s\n", v.Daemon.line(), v.Daemon.GoBGP)
	case v.Reason != "":
		text += "Daemon: unknown: " + v.Reason + "\n"
	}
	_, err := fmt.Fprint(c.out, text)
	return err
}
