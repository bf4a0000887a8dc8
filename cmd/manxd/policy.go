package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"

	"go.uber.org/zap"

	"github.com/manxnet/manx/daemon/deps"
	"github.com/manxnet/manx/daemon/envflag"
	"github.com/manxnet/manx/daemon/kubereport"
	"github.com/manxnet/manx/daemon/part"
	"github.com/manxnet/manx/dataplane"
	"github.com/manxnet/manx/dataplane/kernel/conntrack"
	"github.com/manxnet/manx/dataplane/kernel/nftables"
	"github.com/manxnet/manx/dataplane/policy"
	"github.com/manxnet/manx/dataplane/ruleset"
	"github.com/manxnet/manx/dataplane/sysctl"
	"github.com/manxnet/manx/proto/server"
)

// policyOptions are this node's settings of the packet filter.
type policyOptions struct {
	on           bool
	counters     bool
	checkOutside bool
	clampMSS     bool
	toHostAction string
	budget       policy.Budget
	maxFragments int                        // of one workload
	reassembly   struct{ Memory, Time int } // MiB, seconds
	// encryptionRequired refuses packets of workloads to other nodes that cannot be encrypted.
	encryptionRequired bool
}

// Flags implements group.
func (o *policyOptions) Flags(s envflag.Set) {
	s.Bool(&o.on, "policy", true, "enforce policy: keep the table inet manx of nftables; with false all traffic "+
		"of workloads passes, and natOutgoing does nothing", "MANX_POLICY")
	s.Bool(&o.counters, "policy-counters", false, "count packets and bytes of every rule of every policy, not "+
		"only of staged ones; metrics then name the policies", "MANX_POLICY_COUNTERS")
	s.Bool(&o.checkOutside, "check-outside-sources", true, "drop packets that come from outside with the address of "+
		"a workload of this node, or with IPv6 of the node itself; false for load balancers and switches that send "+
		"such packets back", "MANX_CHECK_OUTSIDE_SOURCES")
	s.Bool(&o.clampMSS, "clamp-mss", false, "lower the maximum segment size of TCP connections that this host "+
		"forwards to the MTU of their routes, for pods that do not get ICMP; needs policy", "MANX_CLAMP_MSS")
	s.String(&o.toHostAction, "endpoint-to-host-action", "", "action for traffic from workloads to this host "+
		"that their policies allow: Drop, Accept or Return; empty: defaultEndpointToHostAction of "+
		"FelixConfiguration, else Drop", "FELIX_DEFAULTENDPOINTTOHOSTACTION")
	s.Bool(&o.encryptionRequired, "wireguard-required", false, "with wireguardEnabled or wireguardEnabledV6, drop "+
		"packets to pods of other nodes that WireGuard does not encrypt", "MANX_WIREGUARD_REQUIRED")
	o.limitFlags(s)
}

// limitFlags adds the flags of limits to a set.
func (o *policyOptions) limitFlags(s envflag.Set) {
	budget := policy.DefaultBudget
	s.Int(&o.budget.Rules, "policy-max-rules", budget.Rules, "how many policies and rules one namespace may "+
		"have in force on this node; further policies drop all packets in their directions; 0: any",
		"MANX_POLICY_MAX_RULES")
	s.Int(&o.budget.Sets, "policy-max-sets", budget.Sets, "the same for different selectors, named ports and "+
		"services in these rules", "MANX_POLICY_MAX_SETS")
	s.Int(&o.budget.Elements, "policy-max-elements", budget.Elements, "the same for the members of these, and "+
		"networks and ports in these rules", "MANX_POLICY_MAX_ELEMENTS")
	s.Int(&o.maxFragments, "workload-max-fragments", 2000, "IP fragments a second, and at once, that one workload may "+
		"send; more are dropped; 0: any", "MANX_WORKLOAD_MAX_FRAGMENTS")
	s.Int(&o.reassembly.Memory, "reassembly-memory", 64, "MiB for each IP family that this host gets, at least, for "+
		"packets of which not all fragments have come; 0: as the kernel is set", "MANX_REASSEMBLY_MEMORY")
	s.Int(&o.reassembly.Time, "reassembly-time", 2, "seconds that fragments wait for the rest of their packet, at "+
		"most; 0: as the kernel is set", "MANX_REASSEMBLY_TIME")
}

// policyPart maintains the packet filter.
type policyPart struct {
	*dataplane.PolicyAgent
	rules *nftables.Conn
	view  *server.PolicyView
}

// newPolicy returns nil if policy is disabled. group is the NFLOG group of the flow log, 0 for none.
func newPolicy(d deps.Deps, o policyOptions, group uint16) (*policyPart, error) {
	if !o.on {
		leaveAlone(d.Log.Named("policy"))
		return nil, nil
	}
	rules, err := nftables.New()
	if err != nil {
		return nil, err
	}
	config := o.config(d.Node)
	config.FlowLog = group
	p := &policyPart{rules: rules, view: d.Control.Policy,
		PolicyAgent: dataplane.NewPolicy(dataplane.PolicyConfig{Rules: rules, Links: d.Kernel,
			Connections: conntrack.New(nil), Entries: conntrack.New(nil), Policy: config,
			Logger: d.Log.Named("policy"), Programmed: d.Control.Policy.Programmed,
			Repaired: kubereport.RepairedBy(d.Events), Reached: d.Bus.PolicyReached.Publish})}
	d.Bus.Links.Subscribe(p.InterfacesChanged)
	p.view.Show(server.PolicySource{Agent: p.PolicyAgent, Tracer: rules})
	return p, nil
}

func (p *policyPart) Name() string        { return "policy" }
func (p *policyPart) Ready() server.Check { return p.view.Ready() }

// Needs returns the kinds on which the packet filter depends.
func (p *policyPart) Needs() part.Needs { return part.AllOf(policy.Kinds...) }

// Run implements part.Part.
func (p *policyPart) Run(ctx context.Context) error { return p.PolicyAgent.Run(ctx) }

// Close closes the connection to the kernel; the rules stay.
func (p *policyPart) Close() { _ = p.rules.Close() }

// config returns the administrator's settings of this node's packet filter.
func (o *policyOptions) config(n deps.Node) policy.Config {
	return policy.Config{Node: n.Name, Counters: o.counters, Budget: o.budget, Fragments: o.fragments(),
		TrustOutside: !o.checkOutside, ClampMSS: o.clampMSS, Felix: n.Felix,
		EncryptionRequired: o.encryptionRequired}
}

// fragments bounds those of a workload, in bytes so that it takes a quarter of the memory at most.
func (o *policyOptions) fragments() policy.Fragments {
	bytes := o.reassembly.Memory << 20 / 4 / (1 + o.reassembly.Time)
	return policy.Fragments{Packets: uint32(o.maxFragments), Bytes: uint32(min(bytes, math.MaxUint32))}
}

// reassemblyRoom is the room for incomplete packets. Without policy they come from anyone at any rate, and nothing is
// changed.
func (o *policyOptions) reassemblyRoom() sysctl.Reassembly {
	if !o.on {
		return sysctl.Reassembly{}
	}
	return sysctl.Reassembly{Memory: o.reassembly.Memory << 20, Time: o.reassembly.Time}
}

// errEncryptsNothing: the packet filter would drop all packets between the pods of different nodes.
var errEncryptsNothing = errors.New("--wireguard-required: with --networking=none another program makes the network " +
	"of pods, and WireGuard is never switched on: encrypt with that program, and leave the flag out")

// Check implements group.
func (o *policyOptions) Check() error {
	switch {
	case min(o.budget.Rules, o.budget.Sets, o.budget.Elements) < 0:
		return errors.New("--policy-max-rules, --policy-max-sets and --policy-max-elements: want 0 or more")
	case min(o.maxFragments, o.reassembly.Memory, o.reassembly.Time) < 0 || o.maxFragments > 1e6:
		return errors.New("--workload-max-fragments: want 0 to 1000000; --reassembly-memory and --reassembly-time: " +
			"want 0 or more")
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
