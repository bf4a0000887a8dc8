package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/node"
	"github.com/manxnet/manx/ipam/hostlocal"
)

// lockTimeout bounds the wait for a host-local that is at work.
const lockTimeout = 30 * time.Second

func (c *cli) ipamUpgradeCommand() *cobra.Command {
	var yes bool
	var name, folder, network string
	cmd := &cobra.Command{
		Use:   "upgrade [NETWORK]",
		Short: "Move the addresses that host-local has assigned on this host to IPAM, after a confirmation",
		Long: `Show which addresses the CNI plugin host-local has assigned on this host in a network, and how they move to IPAM, each
step with its reason; do it after a confirmation or with --yes. The containers keep their addresses. NETWORK is the name
of the network in host-local, which has a folder of that name in /var/lib/cni/networks: ` + hostlocal.Network + `, unless it
is given; that of flannel is cbr0.

Each address gets the handle by which the plugin of network --handle-network releases it when the container is detached.
Blocks of the node's pod CIDR are claimed for the node. With a Kubernetes datastore an address that no running pod of
the node has is a leftover of host-local, which is dropped. An address that lies in no enabled pool stays, and so does
an entry of the folder that is no file of an address. A file is removed when IPAM has its address; a second run does
the rest. The folder has to be root's alone, and host-local waits meanwhile.

Before it, have no plugin attach pods on this host with host-local any more: use "kubectl cordon", or stop the kubelet.

Exit codes: 0 nothing is left; 1 error; 2 usage; 4 not confirmed, or entries stay.`,
		Example: "  manxctl ipam upgrade\n  manxctl ipam upgrade cbr0 --yes",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if c.plugin && folder == "" {
				return usagef("the files of host-local are on the node: run this command there")
			}
			from := hostlocal.Network
			if len(args) == 1 {
				from = args[0]
			}
			if folder == "" {
				var err error
				if folder, err = hostlocal.Folder(from); err != nil {
					return usagef("%v", err)
				}
			}
			content, err := hostlocal.Read(folder)
			if err != nil {
				return err
			}
			if len(content.Files)+len(content.Refused) == 0 {
				return c.nothingToUpgrade(folder)
			}
			u := hostlocal.Upgrade{Folder: folder, Network: network, Now: time.Now}
			if u.Node, _, err = node.Name(node.NameSources{Configured: name, File: c.nodenameFile(),
				Env: c.env("HOSTNAME")}); err != nil {
				return err
			}
			store, err := c.open(cmd.Context())
			if err != nil {
				return err
			}
			defer store.Close() //nolint:errcheck // every write has been answered
			u.Store = store
			return c.upgradeIPAM(cmd.Context(), &u, yes)
		},
	}
	f := cmd.Flags()
	f.BoolVar(&yes, "yes", false, "do it without a confirmation")
	f.StringVar(&name, "node", c.env("NODENAME"), "name of this node; empty: as manxd has written it, or that of the "+
		"host [NODENAME]")
	f.StringVar(&folder, "folder", "", "folder of host-local; empty: that of NETWORK")
	f.StringVar(&network, "handle-network", hostlocal.Network, "name of the network that will detach the containers")
	return cmd
}

// nodenameFile is the file with the name of the node that manxd and calico/node write.
func (c *cli) nodenameFile() string {
	if file := c.env("CALICO_NODENAME_FILE"); file != "" {
		return file
	}
	return "/var/lib/calico/nodename"
}

func (c *cli) nothingToUpgrade(folder string) error {
	text := fmt.Sprintf("There are no addresses of host-local in %s: nothing to upgrade.", folder)
	if others := hostlocal.Others(folder); len(others) > 0 {
		text += " Other networks have some: " + strings.Join(others, ", ") + "."
	}
	return c.printf("%s", text)
}

func (c *cli) upgradeIPAM(ctx context.Context, u *hostlocal.Upgrade, yes bool) error {
	plan, err := u.Plan(ctx)
	if errors.Is(err, datastore.ErrNotFound) {
		err = fmt.Errorf("%w: name this node with --node", err)
	}
	if err == nil {
		_, err = fmt.Fprint(c.out, plan.Text())
	}
	if err != nil {
		return err
	}
	if len(plan.Steps) > 0 {
		if !yes && !c.confirmed(fmt.Sprintf("Do these %d steps? [y/N] ", len(plan.Steps))) {
			c.complain([]string{"Nothing was changed."})
			return &exitErr{exitUnhealthy, ""}
		}
		done, err := u.Do(ctx, plan, lockTimeout)
		if err := errors.Join(err, c.printf("Did %d of %d steps.", done, len(plan.Steps))); err != nil {
			return err
		}
	}
	if len(plan.Kept) > 0 {
		return &exitErr{exitUnhealthy, ""}
	}
	return nil
}
