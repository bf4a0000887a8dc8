package main

import (
	"github.com/manxnet/manx/daemon/overuse"
	"github.com/manxnet/manx/dataplane/kernel/conntrack"
)

// overusePart keeps one workload from taking what the kernel has for all.
type overusePart struct{ *overuse.Watch }

// newOveruse returns nil without policy, whose rules limit workloads.
func newOveruse(h *host, p *policyPart) *overusePart {
	if p == nil {
		return nil
	}
	return &overusePart{overuse.New(overuse.Config{
		Connections: conntrack.New(nil), Sysctl: h.kernel.Sysctl, Policy: p.agent,
		MaxConnections: h.maxConnections, MaxFragments: uint32(h.maxFragments), Log: h.log.Named("overuse"),
	})}
}

func (*overusePart) Name() string { return "overuse" }
