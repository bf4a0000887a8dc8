package main

import (
	"fmt"

	"github.com/manxnet/manx/daemon/deps"
	"github.com/manxnet/manx/daemon/envflag"
	"github.com/manxnet/manx/daemon/overuse"
	"github.com/manxnet/manx/dataplane/kernel/conntrack"
)

// overuseOptions limit one workload.
type overuseOptions struct{ maxConnections int }

// Flags implements group.
func (o *overuseOptions) Flags(s envflag.Set) {
	s.Int(&o.maxConnections, "workload-max-connections", 0, "connections that one workload may begin, and as many "+
		"that it may answer, in the kernel's table while that is half full; with more it gets no new ones of that "+
		"direction; 0: a quarter of the table; -1: any",
		"MANX_WORKLOAD_MAX_CONNECTIONS")
}

// Check implements group.
func (o *overuseOptions) Check() error {
	if o.maxConnections < -1 {
		return fmt.Errorf("--workload-max-connections=%d: want -1 or more", o.maxConnections)
	}
	return nil
}

// overusePart keeps one workload from taking what the kernel has for all.
type overusePart struct{ *overuse.Watch }

// newOveruse returns nil without policy, whose rules limit workloads.
func newOveruse(d deps.Deps, p *policyPart, maxConnections, maxFragments int) *overusePart {
	if p == nil {
		return nil
	}
	return &overusePart{overuse.New(overuse.Config{
		Connections: conntrack.New(nil), Sysctl: d.Kernel.Sysctl, Policy: p.PolicyAgent,
		MaxConnections: maxConnections, MaxFragments: uint32(maxFragments), Log: d.Log.Named("overuse"),
	})}
}

func (*overusePart) Name() string { return "overuse" }
