package main

import (
	"github.com/manxnet/manx/cni"
	"github.com/manxnet/manx/dataplane/kernel/nftables"
)

// enforced implements engine.Config.Enforced for the host's network namespace, in which runtimes execute the plugin.
func enforced(c *cni.Config) error {
	if !c.RequirePolicyTable {
		return nil
	}
	rules, err := nftables.New()
	if err != nil {
		return err
	}
	defer rules.Close() //nolint:errcheck // only read
	return rules.RequireTable()
}
