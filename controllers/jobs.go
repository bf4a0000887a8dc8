package controllers

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	corev1 "k8s.io/api/core/v1"

	"github.com/manxnet/manx/controllers/deletions"
	"github.com/manxnet/manx/controllers/endpoints"
	"github.com/manxnet/manx/controllers/hostendpoints"
	"github.com/manxnet/manx/controllers/ipamgc"
	"github.com/manxnet/manx/controllers/loadbalancer"
	"github.com/manxnet/manx/controllers/loop"
	"github.com/manxnet/manx/controllers/migration"
	"github.com/manxnet/manx/controllers/mirror"
	"github.com/manxnet/manx/controllers/mistakes"
	"github.com/manxnet/manx/controllers/nodes"
	"github.com/manxnet/manx/controllers/policynames"
	"github.com/manxnet/manx/controllers/settings"
	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/ipam"
	"github.com/manxnet/manx/retry"
)

// kindsOf returns the kinds in a leader's tables, of the store and of the source.
func kindsOf(inKubernetes, noIPAM bool) (store, source []model.Kind) {
	store, source = ipamgc.Kinds()
	if noIPAM {
		store = []model.Kind{model.KindNode, model.KindClusterInformation}
	}
	store = append(store, model.KindKubeControllers, model.KindHostEndpoint)
	store = append(store, policynames.Kinds()...)
	if inKubernetes {
		ending, _ := (&deletions.Controller{NoIPAM: noIPAM}).Kinds()
		judged, _ := mistakes.Kinds()
		store = append(append(append(store, ending...), judged...), model.KindWorkloadEndpoint)
		slices.Sort(store)
		return slices.Compact(store), nil
	}
	return append(store, model.KindProfile, model.KindWorkloadEndpoint),
		append(source, model.KindNamespace, model.KindServiceAccount, model.KindKubernetesNetworkPolicy)
}

// jobs returns the controllers to run. Without the Kubernetes API it leaves out those that need it.
func (w *worker) jobs(run settings.Running) (map[string]job, error) {
	jobs := w.always()
	if run.Compaction > 0 && w.Compactor != nil {
		jobs["etcd-compaction"] = job{run.Compaction, func(ctx context.Context) error {
			return w.Compactor.Compact(ctx, run.Compaction)
		}}
	}
	if n := run.Node; n != nil {
		hosts, err := hostendpoints.New(n.Hosts)
		if err != nil {
			return nil, err
		}
		jobs[hosts.Name()] = w.loop(hosts, n.Hosts, 0)
	}
	if w.InKubernetes {
		c := &deletions.Controller{Store: w.Store, Native: w.native, NoIPAM: w.NoIPAM, Now: time.Now}
		jobs[c.Name()] = w.loop(c, nil, 0)
		if w.Report != nil {
			jobs["object-rules"] = job{true, w.reportMistakes}
		}
	}
	if !w.NoIPAM {
		jobs["ipam-audit"] = job{true, w.auditIPAM}
	}
	if w.source == nil || w.Kube == nil {
		return jobs, nil
	}
	w.carry(jobs, run)
	if n := run.Node; n != nil {
		w.nodes(jobs, n)
	}
	if l := run.LoadBalancer; l != nil && !w.NoIPAM {
		jobs["loadbalancer"] = job{*l, w.loadBalancer(*l)}
	}
	if run.PolicyNames {
		c := &policynames.Migrator{Ready: w.Kube.OldNodes, Store: w.Store, Log: w.Log.Named("policy-names")}
		jobs["policy-names"] = job{true, func(ctx context.Context) error { return c.Run(ctx, w.tables) }}
	}
	return jobs, nil
}

// always returns the controllers that run also while the datastore is locked: the lock of a migration is theirs.
func (w *worker) always() map[string]job {
	jobs := map[string]job{}
	if w.InKubernetes && w.Kube != nil {
		c := &migration.Controller{API: w.Kube.Objects(), Others: w.Kube.Others, Behind: w.Kube.Behind,
			Log:    w.Log.Named(migration.Name),
			Report: func(text string) { w.set(func(s *State) { s.Migration = text }) },
			Now:    time.Now, Interval: min(w.CheckInterval, 10*time.Second), Idle: w.CheckInterval, Drain: w.Drain,
			Metrics: &w.migrated}
		jobs[migration.Name] = job{true, c.Run}
	}
	return jobs
}

func (w *worker) auditIPAM(ctx context.Context) error {
	var pods *datastore.Tables
	if w.source != nil && !w.InKubernetes {
		pods = w.sourceTables
	}
	return w.audit.Run(ctx, w.Store, w.tables, pods, w.Log.Named("ipam-audit"))
}

// reference refers to the custom resource of an object; false if it has none.
func (w *worker) reference(o *model.Object) (corev1.ObjectReference, bool) {
	s, ok := w.Store.(interface {
		Reference(*model.Object) (corev1.ObjectReference, bool)
	})
	if !ok {
		return corev1.ObjectReference{}, false
	}
	return s.Reference(o)
}

// native reports whether an object is a custom resource of projectcalico.org/v3.
func (w *worker) native(o *model.Object) bool {
	r, ok := w.reference(o)
	return ok && r.APIVersion == v3.GroupVersionCurrent
}

// reportInterval is the interval between reports of broken rules, which bounds their rate.
const reportInterval = 5 * time.Second

// reportMistakes reports custom resources that break a rule until ctx ends. It reads further kinds, which no controller
// needs: if one of them cannot be read, the controllers work, and the objects of their kinds are reported. Of objects
// that come together one may be there before another that it names, so a mistake is reported when it has lasted for an
// interval.
func (w *worker) reportMistakes(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	var group sync.WaitGroup
	defer group.Wait()
	defer cancel(nil)
	_, kinds := mistakes.Kinds()
	kinds = slices.DeleteFunc(kinds, func(k model.Kind) bool { return !w.Store.Keeps(k) })
	group.Go(func() { cancel(w.further.Run(ctx, w.Store, kinds...)) })
	var here, there mistakes.Finder
	var last map[corev1.ObjectReference]string
	for ctx.Err() == nil {
		for t, f := range map[*datastore.Tables]*mistakes.Finder{w.tables: &here, w.further: &there} {
			if s := t.Snapshot(); s.InSync() {
				f.Update(s)
			}
		}
		if here.Ready() || there.Ready() {
			now := w.referred(&here, &there)
			lasting := maps.Clone(now)
			maps.DeleteFunc(lasting, func(r corev1.ObjectReference, text string) bool { return last[r] != text })
			w.Report(lasting)
			last = now
		}
		retry.Sleep(ctx, reportInterval)
	}
	return context.Cause(ctx)
}

// referred returns the texts about custom resources.
func (w *worker) referred(finders ...*mistakes.Finder) map[corev1.ObjectReference]string {
	list := map[corev1.ObjectReference]string{}
	for _, f := range finders {
		for o, text := range f.All() {
			if r, ok := w.reference(o); ok {
				list[r] = text
			}
		}
	}
	return list
}

// loop returns the job of a controller that works from the tables. with identifies its configuration.
func (w *worker) loop(c loop.Controller, with any, period time.Duration) job {
	r := &loop.Runner{Controller: c, Store: w.Store, Log: w.Log.Named(c.Name()), Period: period, Counts: &w.counts}
	source := w.sourceTables
	if _, kinds := c.Kinds(); len(kinds) == 0 {
		source = emptyTables() // an unused source must not keep it from working
	}
	return job{with, func(ctx context.Context) error { return r.Run(ctx, w.tables, source) }}
}

// carry adds the controllers that copy Kubernetes' objects to Calico's datastore.
func (w *worker) carry(jobs map[string]job, run settings.Running) {
	for _, x := range []struct {
		with *settings.Carrier
		make func() loop.Controller
	}{
		{run.Policy, func() loop.Controller { return mirror.Policies(w.source) }},
		{run.Namespace, func() loop.Controller { return mirror.Namespaces(w.source) }},
		{run.ServiceAccount, func() loop.Controller { return mirror.ServiceAccounts(w.source) }},
		{run.WorkloadEndpoint, func() loop.Controller { return &endpoints.Endpoints{} }},
	} {
		if x.with != nil {
			c := x.make()
			jobs[c.Name()] = w.loop(c, *x.with, x.with.Period)
		}
	}
}

// nodes adds the controllers of nodes that need Kubernetes.
func (w *worker) nodes(jobs map[string]job, n *settings.Node) {
	if n.Labels {
		c := &nodes.Labels{}
		jobs[c.Name()] = w.loop(c, nil, 0)
	}
	if n.Delete {
		c := &nodes.Deleter{Source: w.source}
		jobs[c.Name()] = w.loop(c, nil, 0)
	}
	if w.NoIPAM {
		return
	}
	jobs["node-ipam"] = job{n.Grace, func(ctx context.Context) error {
		log := w.Log.Named("node-ipam")
		c := &ipamgc.Collector{Store: w.Store, Source: w.source, Pods: w.Kube, IPAM: ipam.New(w.Store, log, time.Now),
			Log: log, Now: time.Now, Grace: n.Grace, Releases: w.releases}
		w.show(c)
		defer w.show(nil)
		return c.Run(ctx, w.tables, w.sourceTables)
	}}
}

// show adds the metrics of the running collector.
func (w *worker) show(c *ipamgc.Collector) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.collector = c
}

func (w *worker) loadBalancer(l settings.LoadBalancer) func(context.Context) error {
	log := w.Log.Named("loadbalancer")
	return func(ctx context.Context) error {
		c := &loadbalancer.Controller{Services: w.Kube.Services(), IPAM: ipam.New(w.Store, log, time.Now), Log: log,
			RequestedOnly: l.RequestedOnly, Now: time.Now}
		return c.Run(ctx, w.tables)
	}
}
