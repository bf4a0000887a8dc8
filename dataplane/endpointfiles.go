package dataplane

import (
	"cmp"
	"context"
	"net/netip"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/manxnet/manx/dataplane/endpointstatus"
	"github.com/manxnet/manx/datastore/safefile"
)

// endpointFiles tells CNI plugins which workloads are connected and protected. The zero value tells nothing.
type endpointFiles struct {
	now       func() time.Time
	folder    func(prefix string) string // nil: nowhere
	prefix    string                     // of FelixConfiguration
	dir       string
	refused   *Notice                // why the folder that FelixConfiguration leads to is not used, nil if it is
	checkAt   time.Time              // when to look again
	target    *endpointstatus.Target // nil: nobody is told
	failing   *Notice                // why files are not as they should be, nil if they are
	endpoints []endpointstatus.Endpoint
	untold    []Notice               // endpoints that cannot have a file
	policy    *endpointstatus.Policy // nil: nobody programs policy
}

// checkFolderEvery is how often a folder is looked at again that was refused.
const checkFolderEvery = 10 * time.Second

func newEndpointFiles(c Config, now func() time.Time) endpointFiles {
	f := endpointFiles{now: now, folder: c.EndpointStatusDir}
	if c.WithPolicy {
		f.policy = &endpointstatus.Policy{}
	}
	return f
}

// choose is the folder to use: the one that FelixConfiguration leads to, or the usual one if others could turn aside
// what root writes there. Whoever can write to the datastore does not administer this host.
func (f *endpointFiles) choose() (dir string, owned bool) {
	dir, usual := f.folder(f.prefix), f.folder("")
	if dir == usual || dir == "" {
		f.refused = nil
		return dir, false
	}
	err := safefile.CheckOwned(dir)
	if err == nil {
		f.refused = nil
		return dir, true
	}
	text := "the status of workloads is not written there but in " + cmp.Or(usual, "no folder") +
		", because FelixConfiguration chose it and others than root may change it: " +
		err.Error() + "; use a folder that only root can write, or --endpoint-status-path-prefix"
	if f.refused == nil || f.refused.Text != text {
		f.refused = &Notice{Subject: dir, Text: text, Since: f.now()}
	}
	return usual, false
}

// notices tell what is wrong with the files.
func (f *endpointFiles) notices() []Notice {
	var list []Notice
	list = append(list, f.untold...)
	slices.SortFunc(list, func(a, b Notice) int { return strings.Compare(a.Subject, b.Subject) })
	for _, n := range []*Notice{f.refused, f.failing} {
		if n != nil {
			list = append(list, *n)
		}
	}
	return list
}

// move goes on in the folder that FelixConfiguration, as it is now, leads to. What is in the one before is not kept up to date
// any more, and so removed.
func (f *endpointFiles) move(prefix string) error {
	if f.folder == nil {
		return nil
	}
	f.prefix, f.checkAt = prefix, f.now().Add(checkFolderEvery)
	dir, owned := f.choose()
	if dir == f.dir {
		return nil
	}
	var err error
	if f.target != nil {
		_, err = endpointstatus.Cleanup(f.dir)
	}
	f.dir, f.target, f.failing = dir, nil, nil
	if dir != "" {
		f.target = endpointstatus.New(dir, f.now)
	}
	if owned {
		f.target.RequireOwned()
	}
	return err
}

// note keeps why files are not as they should be.
func (f *endpointFiles) note(err error) {
	switch {
	case err == nil:
		f.failing = nil
	case f.failing == nil || f.failing.Text != err.Error():
		f.failing = &Notice{Subject: f.dir, Text: err.Error(), Since: f.now()}
	}
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

// moveFiles looks which folder is to be used.
func (a *Agent) moveFiles() {
	before := a.files.refused
	if err := a.files.move(a.state.felix.EndpointStatusPathPrefix); err != nil {
		a.log.Warn("files that tell of workloads are left in the folder where they were kept before", zap.Error(err))
	}
	if r := a.files.refused; r != nil && r != before {
		a.log.Warn("endpointStatusPathPrefix of FelixConfiguration is not followed", zap.String("folder", r.Subject),
			zap.String("reason", r.Text))
	}
}

// configureFiles takes over the endpoints of the newest state.
func (a *Agent) configureFiles() {
	a.moveFiles()
	if a.files.target == nil {
		return
	}
	a.files.endpoints, a.files.untold = a.files.endpoints[:0], nil
	for k, e := range a.state.usable() {
		var addresses []netip.Prefix
		for _, text := range e.Spec.IPNetworks {
			if p := address(text); p.IsValid() {
				addresses = append(addresses, p.Masked())
			}
		}
		o := a.reader.Get(k)
		if o == nil {
			continue
		}
		end, err := endpointstatus.NewEndpoint(k, o.Revision, e.Spec.InterfaceName, e.Spec.MAC, addresses)
		if err != nil {
			a.log.Debug("no CNI plugin can be told of a workload", zap.Stringer("key", k), zap.Error(err))
			a.files.untold = append(a.files.untold,
				Notice{Subject: k.String(), Text: "the CNI plugin is not told of it: " + err.Error()})
			continue
		}
		a.files.endpoints = append(a.files.endpoints, end)
	}
}

// flushFiles tells what has been reached. It returns when to be called again at the latest.
func (a *Agent) flushFiles() time.Duration {
	f := &a.files
	if (f.refused != nil || f.failing != nil) && !f.now().Before(f.checkAt) {
		a.moveFiles()
	}
	if f.target == nil {
		return time.Hour
	}
	// Files of an earlier run stay until the policy that they tell of can be checked: a restart changes nothing.
	f.target.Synced(a.synced.datastore && (f.policy == nil || f.policy.Revision > 0))
	f.target.Set(endpointstatus.Decide(f.endpoints, f.policy, func(e endpointstatus.Endpoint, p netip.Prefix) bool {
		return a.routes.ServesEndpoint(p, e.Key.Namespace+"/"+e.Key.Name)
	}))
	_, _, err := f.target.Flush()
	err = cmp.Or(err, f.target.Problem())
	f.note(err)
	a.report("endpoint-status", err)
	a.reportRepairs("endpoint-status", f.target.Repairs)
	if f.refused != nil || f.failing != nil {
		return max(min(f.target.Next(), f.checkAt.Sub(f.now())), time.Millisecond)
	}
	return f.target.Next()
}
