package dataplane

import (
	"cmp"
	"context"
	"net/netip"
	"time"

	"go.uber.org/zap"

	"github.com/manxnet/manx/dataplane/endpointstatus"
)

// endpointFiles tells CNI plugins which workloads are connected and protected. The zero value tells nothing.
type endpointFiles struct {
	now       func() time.Time
	folder    func(prefix string) string // nil: nowhere
	dir       string
	target    *endpointstatus.Target // nil: nobody is told
	endpoints []endpointstatus.Endpoint
	policy    *endpointstatus.Policy // nil: nobody programs policy
}

func newEndpointFiles(c Config, now func() time.Time) endpointFiles {
	f := endpointFiles{now: now, folder: c.EndpointStatusDir}
	if c.WithPolicy {
		f.policy = &endpointstatus.Policy{}
	}
	return f
}

// move goes on in the folder that FelixConfiguration, as it is now, leads to. What is in the one before is not kept up to date
// any more, and so removed.
func (f *endpointFiles) move(prefix string) error {
	if f.folder == nil {
		return nil
	}
	dir := f.folder(prefix)
	if dir == f.dir {
		return nil
	}
	var err error
	if f.target != nil {
		_, err = endpointstatus.Cleanup(f.dir)
	}
	f.dir, f.target = dir, nil
	if dir != "" {
		f.target = endpointstatus.New(dir, f.now)
	}
	return err
}

func (f *endpointFiles) resync() {
	if f.target != nil {
		f.target.Resync()
	}
}

// SetPolicy hands over whose policy is in the kernel. Its map belongs to the agent from then on.
func (a *Agent) SetPolicy(p endpointstatus.Policy) {
	a.inbox.put(func(b *batch) { b.policy = &p })
	a.loop.Trigger()
}

// FollowPolicy hands over whose policy p has in the kernel, each time that changes, until ctx ends.
func (a *Agent) FollowPolicy(ctx context.Context, p *PolicyAgent) error {
	for {
		reached := p.Reached()
		// The revision first: what is read after it is of this revision or a later one.
		state := endpointstatus.Policy{Revision: p.Revision(), Interfaces: map[string]bool{}}
		for _, name := range p.Workloads() {
			state.Interfaces[name] = true
		}
		a.SetPolicy(state)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-reached:
		}
	}
}

// configureFiles takes over the endpoints of the newest state.
func (a *Agent) configureFiles() {
	if err := a.files.move(a.state.felix.EndpointStatusPathPrefix); err != nil {
		a.log.Warn("files that tell of workloads are left in the folder where they were kept before", zap.Error(err))
	}
	if a.files.target == nil {
		return
	}
	a.files.endpoints = a.files.endpoints[:0]
	for k, e := range a.state.endpoints {
		var addresses []netip.Prefix
		for _, text := range e.Spec.IPNetworks {
			if p := address(text); p.IsValid() {
				addresses = append(addresses, p.Masked())
			}
		}
		o := a.reader.Get(k)
		if o == nil || e.Spec.InterfaceName == "" {
			continue
		}
		end, err := endpointstatus.NewEndpoint(k, o.Revision, e.Spec.InterfaceName, e.Spec.MAC, addresses)
		if err != nil {
			a.log.Debug("no CNI plugin can be told of a workload", zap.Stringer("key", k), zap.Error(err))
			continue
		}
		a.files.endpoints = append(a.files.endpoints, end)
	}
}

// flushFiles tells what has been reached. It returns when to be called again at the latest.
func (a *Agent) flushFiles() time.Duration {
	f := &a.files
	if f.target == nil {
		return time.Hour
	}
	// Files of an earlier run stay until the policy that they tell of can be checked: a restart changes nothing.
	f.target.Synced(a.synced.datastore && (f.policy == nil || f.policy.Revision > 0))
	f.target.Set(endpointstatus.Decide(f.endpoints, f.policy, func(e endpointstatus.Endpoint, p netip.Prefix) bool {
		return a.routes.ServesEndpoint(p, e.Key.Namespace+"/"+e.Key.Name)
	}))
	_, _, err := f.target.Flush()
	a.report("endpoint-status", cmp.Or(err, f.target.Problem()))
	a.reportRepairs("endpoint-status", f.target.Repairs)
	return f.target.Next()
}
