package dataplane

import (
	"cmp"
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/link"
	"github.com/manxnet/manx/dataplane/reconcile"
	"github.com/manxnet/manx/dataplane/route"
	"github.com/manxnet/manx/dataplane/shape"
	"github.com/manxnet/manx/datastore/model"
)

// Config is what an Agent needs.
type Config struct {
	Kernel   kernel.Kernel
	NodeName string
	Logger   *zap.Logger
	// MTUFile is where the CNI plugin looks for the MTU of workloads, usually /var/lib/calico/mtu; empty for nowhere.
	MTUFile string
	// EndpointStatusDir is the folder where CNI plugins look for the workloads that are connected, usually
	// /var/run/calico/endpoint-status, given endpointStatusPathPrefix of FelixConfiguration; empty, or nil, for
	// nowhere. A folder that depends on the prefix is used only while nobody but root can change what is there.
	EndpointStatusDir func(prefix string) string
	// InterfacePrefix is what the names of workloads' interfaces begin with, in place of what FelixConfiguration says;
	// empty: as it says.
	InterfacePrefix string
	// WithPolicy says that a workload also has to have its policy first; see SetPolicy.
	WithPolicy bool
}

// Agent keeps the host as the datastore and BGP want it. Its methods are safe for concurrent use and, but for Status and
// Routes, never wait. Nothing is changed before the first SetState, nothing that an earlier run left is removed before
// SetSynced, and nothing is undone when Run ends.
type Agent struct {
	kernel  kernel.Kernel
	node    string
	mtuFile string
	prefix  string // of workloads' interfaces, if this host's administrator says it
	log     *zap.Logger
	now     func() time.Time
	loop    *reconcile.Loop

	inbox   inbox
	onLinks func()
	// background runs what would hold up the loop; Run waits for its end.
	background func(func())
	working    sync.WaitGroup

	mu       sync.Mutex // guards what follows: the loop works, or somebody looks
	state    *state
	reader   model.Reader
	nodes    map[netip.Addr]bool
	links    *link.Target
	routes   *route.Target
	shapes   *shape.Target
	files    endpointFiles
	refused  refusals
	synced   synced
	flushed  flushed
	problems map[string]string // what was logged last, by target
	watchErr error
	// forgetting says that connections are being deleted; see forgetConnections.
	forgetting bool
}

type synced struct{ datastore, bgp bool }

// New makes an Agent; Run starts it.
func New(c Config) *Agent { return newAgent(c, time.Now) }

func newAgent(c Config, now func() time.Time) *Agent {
	a := &Agent{
		kernel: c.Kernel, node: c.NodeName, mtuFile: c.MTUFile, prefix: c.InterfacePrefix, log: c.Logger, now: now,
		loop:  reconcile.NewLoop(),
		links: link.New(c.Kernel, c.MTUFile, now), routes: route.New(c.Kernel, now),
		shapes: shape.New(c.Kernel, now), files: newEndpointFiles(c, now),
		problems: map[string]string{},
	}
	a.background = a.working.Go
	return a
}

// OnLinks sets what is called when interfaces or addresses of the host may have changed. Call it before Run; f must not wait.
func (a *Agent) OnLinks(f func()) { a.onLinks = f }

// SetState hands over the newest state of the datastore. changed names the objects that differ from the state before,
// so that the work follows the change; without any, everything is looked at.
func (a *Agent) SetState(r model.Reader, changed ...model.Key) {
	a.inbox.put(func(b *batch) {
		b.all = b.all || len(changed) == 0 || r == nil
		b.reader, b.changed = r, append(b.changed, changed...)
	})
	a.loop.Trigger()
}

// UpdateRoutes hands over what changed in BGP: the whole new state of each prefix; one without next hops is gone. The
// slices belong to the agent from then on.
func (a *Agent) UpdateRoutes(changes []route.Learned) {
	a.inbox.put(func(b *batch) { b.learned = append(b.learned, changes) })
	a.loop.Trigger()
}

// SetStatic hands over all routes to peers that are reached by a gateway. The slice belongs to the agent from then on.
func (a *Agent) SetStatic(list []route.Static) {
	a.inbox.put(func(b *batch) { b.static = &list })
	a.loop.Trigger()
}

// SetPeering hands over all addresses towards workloads that speak BGP. The slice belongs to the agent from then on.
func (a *Agent) SetPeering(list []link.Peering) {
	a.inbox.put(func(b *batch) { b.peering = &list })
	a.loop.Trigger()
}

// SetSynced says whether the datastore and BGP have told everything. Both allow to remove what nobody wants.
func (a *Agent) SetSynced(datastore, bgp bool) {
	a.inbox.put(func(b *batch) { b.synced = &synced{datastore, bgp} })
	a.loop.Trigger()
}

// Resync makes the agent compare with all that is in the kernel.
func (a *Agent) Resync() {
	a.inbox.put(func(b *batch) { b.resync = true })
	a.loop.Trigger()
}

// Run works until ctx ends; it leaves everything in place.
func (a *Agent) Run(ctx context.Context) error {
	var watcher sync.WaitGroup
	watcher.Go(func() { a.watch(ctx) })
	defer watcher.Wait()
	defer a.working.Wait()
	a.loop.Run(ctx, a.step)
	return nil
}

// watch follows the kernel; if that fails it starts again, which includes to read everything.
func (a *Agent) watch(ctx context.Context) {
	keepWatching(ctx, a.loop.After, a.setWatchError, func(works func()) error {
		return a.kernel.Watch(ctx, func(events []kernel.Event) {
			works()
			if a.onLinks != nil && slices.ContainsFunc(events, aboutLinks) {
				a.onLinks()
			}
			a.inbox.put(func(b *batch) { b.addEvents(events) })
			a.loop.Trigger()
		}, ownTables()...)
	})
}

func aboutLinks(e kernel.Event) bool {
	return e.Type != kernel.EventRoute && e.Type != kernel.EventRouteGone
}

func (a *Agent) setWatchError(err error) {
	if err != nil {
		a.log.Error("kernel events are lost, trying again", zap.String("target", "kernel"), zap.Error(err))
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.watchErr = err
}

// step takes what came in and brings the host there. It returns when to be called again at the latest.
func (a *Agent) step() time.Duration {
	if a.flushed.busy(a.now()) {
		// More is on its way: a little patience makes batches of what would be single system calls.
		<-a.loop.After(linger)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	b := a.inbox.take()
	a.takeState(b)
	for _, changes := range b.learned {
		a.routes.Learn(changes)
	}
	if b.static != nil {
		a.routes.SetStatic(*b.static)
	}
	if b.peering != nil {
		a.links.SetPeering(*b.peering)
	}
	if b.forgotten != nil {
		a.forgetting = false
		a.routes.Forgotten(b.forgotten)
	}
	a.links.Handle(b.events)
	a.routes.Handle(b.events)
	a.shapes.Handle(b.events)
	if b.policy != nil {
		a.files.policy = b.policy
	}
	if b.resync {
		a.links.Resync()
		a.routes.Resync()
		a.shapes.Resync()
		a.files.resync()
	}
	if b.synced != nil {
		a.synced = *b.synced
		a.routes.Synced(a.synced.datastore && a.synced.bgp)
		a.shapes.Synced(a.synced.datastore)
	}
	if a.state == nil {
		refuseRetry(b.retries)
		return 0
	}
	retried := a.retry(b.retries)
	next := a.flush()
	retried()
	return next
}

func (a *Agent) takeState(b *batch) {
	if b.reader == nil {
		return
	}
	a.reader = b.reader
	relevant := false
	if a.state == nil || b.all {
		a.state, a.nodes, relevant = readState(a.node, a.prefix, b.reader), nil, true
	} else {
		for _, k := range b.changed {
			if k.Kind == model.KindNode {
				a.nodes = nil
			}
			relevant = a.state.update(b.reader, k) || relevant
		}
	}
	if relevant {
		a.links.Configure(a.state.linkConfig())
		a.routes.Configure(a.state.routeConfig(a.isNode))
		a.shapes.Configure(a.state.shapeConfig())
		a.configureFiles()
		a.refused.take(a.state, a.now(), a.log)
	}
}

// isNode reports whether an address is a cluster node's. It is only asked about routes of protocol 80 that some earlier
// run left, so the addresses are collected when they are needed.
func (a *Agent) isNode(addr netip.Addr) bool {
	if a.nodes == nil {
		a.nodes = map[netip.Addr]bool{}
		for _, n := range model.All[model.Node](a.reader, model.KindNode) {
			a.nodes[n.Spec.BGP.Address(model.IPv4).Addr()] = true
			a.nodes[n.Spec.BGP.Address(model.IPv6).Addr()] = true
		}
	}
	return a.nodes[addr]
}

// flush applies to the kernel: interfaces first, since routes need them.
func (a *Agent) flush() time.Duration {
	_, _, err := a.links.Flush()
	a.report("link", cmp.Or(err, a.links.Problem()))
	a.routes.SetMissing(a.missing())
	steps, _, err := a.routes.Flush()
	a.report("route", cmp.Or(err, a.routes.Problem()))
	a.forgetConnections()
	a.reportRepairs("link", a.links.Repairs)
	a.reportRepairs("route", a.routes.Repairs)
	if steps > 0 {
		a.flushed = flushed{at: a.now(), steps: steps}
	}
	return min(a.links.Next(), a.routes.Next(), a.flushShapes(), a.flushFiles())
}

var errIPIPDisabled = errors.New("IPIP is switched off (FelixConfiguration, ipipEnabled: false)")

// missing says of each tunnel device that this node does not have why.
func (a *Agent) missing() map[string]error {
	why := a.links.Missing()
	if on := a.state.felix.IPIPEnabled; on != nil && !*on {
		why[link.TunnelDevice] = errIPIPDisabled
	}
	return why
}

// reportRepairs logs what others had changed and was put right.
func (a *Agent) reportRepairs(target string, repairs func() ([]reconcile.Repair, int)) {
	list, more := repairs()
	for _, r := range list {
		a.log.Warn("repaired what another program had changed", zap.String("target", target), zap.String("key", r.Key),
			zap.String("found", cmp.Or(r.Found, "nothing")), zap.String("wanted", cmp.Or(r.Wanted, "nothing")))
	}
	if more > 0 {
		a.log.Warn("repaired more than is told one by one", zap.String("target", target), zap.Int("more", more))
	}
}

// report logs a problem once, and its end.
func (a *Agent) report(target string, err error) {
	problem := ""
	if err != nil {
		problem = err.Error()
	}
	if a.problems[target] == problem {
		return
	}
	if problem != "" {
		a.log.Warn("the kernel is not as it should be, trying again", zap.String("target", target), zap.String("reason", problem))
	} else {
		a.log.Info("the kernel is as it should be", zap.String("target", target))
	}
	a.problems[target] = problem
}
