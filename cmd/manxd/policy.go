package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"strings"

	"go.uber.org/zap"

	"github.com/manxnet/manx/dataplane"
	"github.com/manxnet/manx/dataplane/kernel/conntrack"
	"github.com/manxnet/manx/dataplane/kernel/nftables"
	"github.com/manxnet/manx/dataplane/link"
	"github.com/manxnet/manx/dataplane/policy"
	"github.com/manxnet/manx/dataplane/ruleset"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/proto/server"
)

// policyPart maintains the packet filter.
type policyPart struct {
	agent *dataplane.PolicyAgent
	rules *nftables.Conn
	view  *server.PolicyView
}

// newPolicy returns nil if policy is disabled.
func newPolicy(h *host, d *dataplanePart) (*policyPart, error) {
	if !h.policy {
		leaveAlone(h.log.Named("policy"))
		return nil, nil
	}
	rules, err := nftables.New()
	if err != nil {
		return nil, err
	}
	p := &policyPart{rules: rules, view: h.control.Policy,
		agent: dataplane.NewPolicy(dataplane.PolicyConfig{Rules: rules, Links: h.kernel,
			Connections: conntrack.New(nil), Entries: conntrack.New(nil),
			Policy: h.policyConfig(h.name), Logger: h.log.Named("policy"), Programmed: h.control.Policy.Programmed,
			Repaired: h.repaired,
			Reached:  d.SetPolicy})}
	d.onLinks = append(d.onLinks, p.agent.InterfacesChanged)
	p.view.Show(server.PolicySource{Agent: p.agent, Tracer: rules})
	return p, nil
}

func (p *policyPart) Name() string        { return "policy" }
func (p *policyPart) Ready() server.Check { return p.view.Ready() }

// Kinds returns the kinds on which the packet filter depends.
func (p *policyPart) Kinds() []model.Kind { return policy.Kinds }

// Run implements part.Part.
func (p *policyPart) Run(ctx context.Context) error { return p.agent.Run(ctx) }

// Close closes the connection to the kernel; the rules stay.
func (p *policyPart) Close() { _ = p.rules.Close() }

// policyConfig returns the administrator's settings of this node's packet filter.
func (o options) policyConfig(node string) policy.Config {
	group := uint16(0)
	if o.flowLogOn() {
		group = flowLogGroup
	}
	return policy.Config{Node: node, Counters: o.policyCounters, FlowLog: group, Budget: o.policyBudget,
		Fragments:    o.fragments(),
		TrustOutside: !o.checkOutside,
		Felix: func(f *model.FelixConfigurationSpec) {
			f.InterfacePrefix = cmp.Or(o.interfacePrefix, f.InterfacePrefix)
			if o.toHostAction != "" {
				f.DefaultEndpointToHostAction = o.toHostAction
			}
		}}
}

// fragments bounds those of a workload, in bytes so that it takes a quarter of the memory at most.
func (o options) fragments() policy.Fragments {
	bytes := o.reassembly.Memory << 20 / 4 / (1 + o.reassembly.Time)
	return policy.Fragments{Packets: uint32(o.maxFragments), Bytes: uint32(min(bytes, math.MaxUint32))}
}

// reassemblyRoom is the room for incomplete packets. Without policy they come from anyone at any rate, and nothing is
// changed.
func (o options) reassemblyRoom() link.Reassembly {
	if !o.policy {
		return link.Reassembly{}
	}
	return link.Reassembly{Memory: o.reassembly.Memory << 20, Time: o.reassembly.Time}
}

// checkPolicy refuses contradictory settings.
func (o options) checkPolicy() error {
	switch {
	case o.flowLogOn() && !o.policy:
		return errFlowLogNeedsPolicy
	case min(o.policyBudget.Rules, o.policyBudget.Sets, o.policyBudget.Elements) < 0:
		return errors.New("--policy-max-rules, --policy-max-sets and --policy-max-elements: want 0 or more")
	case min(o.maxFragments, o.reassembly.Memory, o.reassembly.Time) < 0 || o.maxFragments > 1e6:
		return errors.New("--workload-max-fragments: want 0 to 1000000; --reassembly-memory and --reassembly-time: " +
			"want 0 or more")
	case o.maxConnections < -1:
		return fmt.Errorf("--workload-max-connections=%d: want -1 or more", o.maxConnections)
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

// leaveAlone removes the packet filter of an earlier run with policy: rules that no program updates would go on to
// deny, and cut off every new workload.
func leaveAlone(log *zap.Logger) {
	rules, err := nftables.New()
	if err == nil {
		defer rules.Close() //nolint:errcheck // everything has been answered
		var left *ruleset.Actual
		if left, err = rules.ReadRules(); err == nil && left != nil {
			if err = rules.DeleteRules(); err == nil {
				log.Info("policy is off: removed the table inet manx of an earlier run")
			}
		}
	}
	if err != nil && !errors.Is(err, nftables.ErrMissing) {
		log.Error("policy is off, but rules of an earlier run may be left: check with `nft list table inet manx`",
			zap.Error(err))
	}
}
