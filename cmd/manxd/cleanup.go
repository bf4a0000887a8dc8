package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"github.com/manxnet/manx/controllers/caliconode"
	"github.com/manxnet/manx/dataplane"
	"github.com/manxnet/manx/dataplane/endpointstatus"
	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/kernel/nftables"
	"github.com/manxnet/manx/dataplane/overlay"
	"github.com/manxnet/manx/datastore/safefile"
	"github.com/manxnet/manx/proto/server"
)

// calicoFlag hands the name of the active calico-node on to the process of another user, which cannot open its sockets.
const calicoFlag = "calico-node"

// clusterFlag selects what Manx leaves in the cluster's objects.
const clusterFlag = "cluster"

// cleanupHelp is the long help of the command.
var cleanupHelp = `cleanup removes the tables inet manx and arp manx, the routes of protocols 12 and 80 from the main
tables, the limits of bandwidth, the node's devices for VXLAN and WireGuard, and the addresses of its others
(` + strings.Join(overlay.DeviceNames(), ", ") + `), the status files of endpoints, and the state and passwords that
were kept for the next start, for a host that is no longer a Manx node. net.ipv4.ping_group_range gets the kernel's
default if manxd has set it. It fails while manxd runs. Interfaces of workloads are removed with their workloads. While
a calico-node runs on this host, it removes the two tables, the rules for packets that no tunnel takes, and the kept
state and passwords alone: the rest is calico-node's now. It finds BIRD by its control socket, and Felix by its process
or by its answers about health at 127.0.0.1:9099.

With --cluster, cleanup changes nothing on this host. It removes the finalizers that the controllers have given to the
pools and tiers of a Kubernetes cluster; without that, kubectl waits forever when it deletes a pool or a tier. End every
manxd and "manxd controllers" of the cluster first, since the next one that leads gives the finalizers again. The
command waits for their pods, and leaves the finalizers to calico-kube-controllers that have a Deployment. It does not
see a manxd outside of a pod. --node-name is the name of the command in the election.`

func cleanupCommand(o *options) *cobra.Command {
	wait, cluster, calico := false, false, ""
	cmd := &cobra.Command{
		Use:   "cleanup",
		Short: "Remove the routes, addresses and rules that manxd leaves in the kernel",
		Long:  cleanupHelp,
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cluster {
				return leaveCluster(cmd.Context(), *o)
			}
			if calico == "" {
				calico = caliconode.Active(cmd.Context())
			}
			err := asOwner(*o, func(o options) error { return cleanup(o, calico) }, "--"+calicoFlag+"="+calico)
			if err == nil && wait {
				<-cmd.Context().Done()
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&wait, "wait", false,
		"wait for a signal afterwards, for a DaemonSet that cleans nodes: it would restart pods that end")
	cmd.Flags().BoolVar(&cluster, clusterFlag, false,
		"remove the finalizers of the cluster's pools and tiers, and nothing of this host")
	cmd.Flags().StringVar(&calico, calicoFlag, "", "the active calico-node, as root has found it")
	_ = cmd.Flags().MarkHidden(calicoFlag)
	return cmd
}

// cleanup removes the kernel state of an ended daemon. It holds the lock of the network namespace and the control
// socket, so that no daemon runs meanwhile. Where calico names an active calico-node, it removes the packet filter
// alone.
func cleanup(o options, calico string) error {
	release, err := beTheOnlyDaemon(zap.NewNop())
	if err != nil {
		return fmt.Errorf("nothing is removed while manxd runs: %w", err)
	}
	defer release()
	socket, err := server.Listen(filepath.Join(o.host.runDir, "manxd.sock"))
	if err != nil {
		return fmt.Errorf("nothing is removed while manxd runs: %w", err)
	}
	defer socket.Close() //nolint:errcheck // nobody uses it
	k, err := kernel.New("")
	if err != nil {
		return err
	}
	defer k.Close() //nolint:errcheck // everything has been answered
	if calico != "" {
		fmt.Printf("calico-node runs here (%s): routes, bandwidth limits, devices, addresses and status files of "+
			"endpoints are its own and stay\n", calico)
		return errors.Join(dataplane.CleanupBesideCalico(dataplane.KernelOf(k)), removeRules(), o.removeKept())
	}
	n, err := dataplane.Cleanup(dataplane.KernelOf(k))
	fmt.Printf("removed %d routes, bandwidth limits, devices and addresses\n", n)
	if dir := o.host.endpointStatusDir(""); dir != "" {
		files, fileErr := endpointstatus.Cleanup(dir)
		fmt.Printf("removed %d status files of endpoints\n", files)
		err = errors.Join(err, fileErr)
	}
	return errors.Join(err, removeRules(), o.removeKept())
}

// removeKept removes the files that were kept for the next start of manxd.
func (o options) removeKept() error {
	return errors.Join(safefile.Remove(o.datastore.lastStateFile()), safefile.Remove(passwordsFile(o.host.runDir)))
}

// removeRules removes the packet filter, also one that cannot be read. Without nftables there is none.
func removeRules() error {
	rules, err := nftables.New()
	if err == nil {
		defer rules.Close() //nolint:errcheck // everything has been answered
		if table, readErr := rules.ReadRules(); readErr == nil && table == nil {
			return nil
		}
		err = rules.DeleteRules()
	}
	switch {
	case errors.Is(err, nftables.ErrMissing):
		return nil
	case err != nil:
		return err
	}
	fmt.Println("removed the table inet manx")
	return nil
}
