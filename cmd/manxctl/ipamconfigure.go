package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/model"
)

// ipamSetting is a flag of "ipam configure": its name, the name of the setting, and its effect.
type ipamSetting struct {
	flag, name, usage string
	set               func(*model.IPAMConfig, string) error
}

var ipamSettings = []ipamSetting{
	{"strictaffinity", "StrictAffinity", "true: a node takes addresses of its own blocks alone",
		func(c *model.IPAMConfig, text string) (err error) {
			if c.StrictAffinity, err = strconv.ParseBool(text); err != nil {
				return errors.New("want true or false")
			}
			return nil
		}},
	{"max-blocks-per-host", "MaxBlocksPerHost", "most blocks of a node, of each family; 0 is no limit",
		func(c *model.IPAMConfig, text string) error {
			n, err := strconv.ParseUint(text, 10, 31)
			if err != nil {
				return errors.New("want a number")
			}
			c.MaxBlocksPerHost = int(n)
			return nil
		}},
	{"kubevirt-ip-persistence", "KubeVirtVMAddressPersistence", "Enabled or Disabled: whether a virtual machine " +
		"keeps its address",
		func(c *model.IPAMConfig, text string) error {
			if !slices.Contains([]string{"Enabled", "Disabled"}, text) {
				return errors.New("want Enabled or Disabled")
			}
			c.KubeVirtVMAddressPersistence = &text
			return nil
		}},
	{"ip-cooldown-seconds", "IPCooldownSeconds", "seconds between the release of an address and its next assignment",
		func(c *model.IPAMConfig, text string) error {
			n, err := strconv.ParseUint(text, 10, 31)
			if err != nil {
				return errors.New("want a number of seconds")
			}
			seconds := int(n)
			c.IPCooldownSeconds = &seconds
			return nil
		}},
}

func (c *cli) ipamConfigureCommand() *cobra.Command {
	values := make([]string, len(ipamSettings))
	cmd := &cobra.Command{
		Use:   "configure",
		Short: "Change the settings of IP address management",
		Long: `Change the settings of IP address management that all nodes use. "manxctl ipam show --show-configuration" prints them.
Settings without a flag stay as they are.`,
		Example: "  manxctl ipam configure --strictaffinity=true\n  manxctl ipam configure --max-blocks-per-host 20",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var change model.IPAMConfig
			text := ""
			for i, s := range ipamSettings {
				if !cmd.Flags().Changed(s.flag) {
					continue
				}
				if err := s.set(&change, values[i]); err != nil {
					return usagef("--%s %q: %v", s.flag, values[i], err)
				}
				text += fmt.Sprintf("Successfully set %s to: %s\n", s.name, values[i])
			}
			if text == "" {
				return usagef("name a setting, such as --strictaffinity=true")
			}
			store, err := c.open(cmd.Context())
			if err != nil {
				return err
			}
			defer store.Close() //nolint:errcheck // the write has been answered
			err = configureIPAM(cmd.Context(), store, func(o *model.Object) error {
				for i, s := range ipamSettings {
					if cmd.Flags().Changed(s.flag) {
						s.set(o.Value.(*model.IPAMConfig), values[i]) //nolint:errcheck // the text was parsed before
					}
				}
				return nil
			})
			if err == nil {
				_, err = fmt.Fprint(c.out, text)
			}
			return err
		},
	}
	for i, s := range ipamSettings {
		cmd.Flags().StringVar(&values[i], s.flag, "", s.usage)
	}
	return cmd
}

// configureIPAM changes the configuration, and creates it if there is none.
func configureIPAM(ctx context.Context, store datastore.Store, change func(*model.Object) error) error {
	_, err := modifyObject(ctx, store, model.IPAMConfigKey, modification{done: "configured", change: change})
	if !errors.Is(err, datastore.ErrNotFound) {
		return err
	}
	o := model.NewObject(model.IPAMConfigKey, &model.IPAMConfig{AutoAllocateBlocks: true})
	if err := change(o); err != nil {
		return err
	}
	_, err = store.Create(ctx, o)
	return err
}
