package main

import (
	"cmp"
	"context"
	"fmt"
	"runtime"
	"strings"
	"time"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	"github.com/spf13/cobra"

	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/datastore/table"
	manxv1 "github.com/manxnet/manx/proto/manx/v1"
)

// versions is the output of "version -o json".
type versions struct {
	Client versionInfo  `json:"client"`
	Daemon *versionInfo `json:"daemon,omitempty"`
	Reason string       `json:"daemonReason,omitempty"` // why the daemon's version is missing
	Calico calicoInfo   `json:"calico"`
}

// calicoInfo has the versions of Calico: of the objects that manxctl knows, and of the cluster as its
// ClusterInformation has it.
type calicoInfo struct {
	Client  string `json:"client"`
	Cluster string `json:"cluster,omitempty"`
	Type    string `json:"clusterType,omitempty"`
	Reason  string `json:"clusterReason,omitempty"` // why the cluster's version is missing
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

// ownVersions are those that this program knows by itself.
func ownVersions() versions {
	return versions{Client: clientVersion(), Calico: calicoInfo{Client: calicoVersion}}
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
		Long: `Show the version of manxctl, of the local manxd and of its GoBGP.

"Client Version" is the release of Calico whose objects manxctl reads and writes, in the form of calicoctl's line, for
scripts that compare it. "Cluster Version" and "Cluster Type" are those of the cluster's ClusterInformation. A manxd or
a datastore that does not answer is no error.`,
		Example: "  manxctl version\n  manxctl version --client\n  manxctl version -o json",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			format, err := table.ParseFormat(output, table.Table, table.JSON, table.YAML)
			if err != nil {
				return usagef("%v", err)
			}
			v := ownVersions()
			if !clientOnly {
				c.clusterVersion(cmd.Context(), &v.Calico)
			}
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

// clusterTime bounds the request for the version of the cluster.
const clusterTime = 5 * time.Second

// clusterVersion reads the ClusterInformation; a missing datastore is no error of this command.
func (c *cli) clusterVersion(ctx context.Context, v *calicoInfo) {
	ctx, cancel := context.WithTimeout(ctx, clusterTime)
	defer cancel()
	store, err := c.open(ctx)
	if err != nil {
		v.Reason = err.Error()
		return
	}
	defer store.Close() //nolint:errcheck // nothing was written
	o, err := store.Get(ctx, model.ResourceKey(model.KindClusterInformation, "default"))
	if err != nil {
		v.Reason = err.Error()
		return
	}
	if info, ok := o.Value.(*v3.ClusterInformation); ok {
		v.Cluster, v.Type = cmp.Or(info.Spec.CalicoVersion, "unknown"), cmp.Or(info.Spec.ClusterType, "unknown")
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
	text += "Client Version:    " + v.Calico.Client + "\n"
	switch {
	case v.Calico.Reason != "":
		text += "Cluster Version:   unknown: " + v.Calico.Reason + "\n"
	case v.Calico.Cluster != "":
		text += "Cluster Version:   " + v.Calico.Cluster + "\nCluster Type:      " + v.Calico.Type + "\n"
	}
	_, err := fmt.Fprint(c.out, text)
	return err
}
