package main

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	"go.uber.org/zap"

	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/policy"
	"github.com/manxnet/manx/dataplane/ruleset"
	"github.com/manxnet/manx/datastore/model"
)

// policyConfig is what this node's administrator decides about its packet filter.
func (o options) policyConfig(node string) policy.Config {
	group := uint16(0)
	if o.flowLogOn() {
		group = flowLogGroup
	}
	return policy.Config{Node: node, Counters: o.policyCounters, FlowLog: group, Felix: func(f *model.FelixConfigurationSpec) {
		f.InterfacePrefix = cmp.Or(o.interfacePrefix, f.InterfacePrefix)
		if o.toHostAction != "" {
			f.DefaultEndpointToHostAction = o.toHostAction
		}
	}}
}

// checkPolicy refuses what cannot be meant.
func (o options) checkPolicy() error {
	switch {
	case o.flowLogOn() && !o.policy:
		return errFlowLogNeedsPolicy
	case o.flowLogRate < 1:
		return fmt.Errorf("--flow-log-rate=%d: want 1 or more", o.flowLogRate)
	case o.flowLogMaxSize < 0:
		return fmt.Errorf("--flow-log-max-size=%d: want 0 or more", o.flowLogMaxSize)
	case o.flowLogMaxFiles < 0:
		return fmt.Errorf("--flow-log-max-files=%d: want 0 or more", o.flowLogMaxFiles)
	}
	switch strings.ToLower(o.toHostAction) {
	case "", "drop", "accept", "return":
		return nil
	}
	return fmt.Errorf("--endpoint-to-host-action=%s: must be Drop, Accept or Return", o.toHostAction)
}

// leaveAlone removes the packet filter that an earlier run with policy has left: rules that nobody keeps would go on to deny, and
// cut off every workload that comes.
func leaveAlone(log *zap.Logger) {
	rules, err := kernel.NewRules()
	if err == nil {
		defer rules.Close() //nolint:errcheck // everything has been answered
		var left *ruleset.Actual
		if left, err = rules.ReadRules(); err == nil && left != nil {
			if err = rules.DeleteRules(); err == nil {
				log.Info("policy is off: removed the table inet manx of an earlier run")
			}
		}
	}
	if err != nil && !errors.Is(err, kernel.ErrNoNFTables) {
		log.Error("policy is off, but rules of an earlier run may be left: look with `nft list table inet manx`", zap.Error(err))
	}
}
