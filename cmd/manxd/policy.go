package main

import (
	"fmt"
	"strings"

	"github.com/manxnet/manx/dataplane/policy"
	"github.com/manxnet/manx/datastore/model"
)

// policyConfig is what this node's administrator decides about its packet filter.
func (o options) policyConfig(node string) policy.Config {
	group := uint16(0)
	if o.flowLogOn() {
		group = flowLogGroup
	}
	return policy.Config{Node: node, Counters: o.policyCounters, FlowLog: group, Felix: func(f *model.FelixConfigurationSpec) {
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
	}
	switch strings.ToLower(o.toHostAction) {
	case "", "drop", "accept", "return":
		return nil
	}
	return fmt.Errorf("--endpoint-to-host-action=%s: must be Drop, Accept or Return", o.toHostAction)
}
