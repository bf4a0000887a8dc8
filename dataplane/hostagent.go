package dataplane

import (
	"context"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/manxnet/manx/dataplane/device"
	"github.com/manxnet/manx/dataplane/endpointstatus"
	"github.com/manxnet/manx/dataplane/hoststate"
	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/kernel/announce"
	"github.com/manxnet/manx/dataplane/kernel/conntrack"
	"github.com/manxnet/manx/dataplane/kernel/tc"
	wgkernel "github.com/manxnet/manx/dataplane/kernel/wireguard"
	"github.com/manxnet/manx/dataplane/moves"
	"github.com/manxnet/manx/dataplane/mtufile"
	"github.com/manxnet/manx/dataplane/neighbour"
	"github.com/manxnet/manx/dataplane/offload"
	"github.com/manxnet/manx/dataplane/owners"
	"github.com/manxnet/manx/dataplane/pathmtu"
	"github.com/manxnet/manx/dataplane/peering"
	"github.com/manxnet/manx/dataplane/proxyneighbour"
	"github.com/manxnet/manx/dataplane/reconcile"
	"github.com/manxnet/manx/dataplane/route"
	"github.com/manxnet/manx/dataplane/shape"
	"github.com/manxnet/manx/dataplane/sysctl"
	"github.com/manxnet/manx/dataplane/vxlan"
	"github.com/manxnet/manx/dataplane/wireguard"
	"github.com/manxnet/manx/datastore/felixconfig"
	"github.com/manxnet/manx/datastore/livemigration"
	"github.com/manxnet/manx/datastore/model"
)

// Kernel has the kernel calls of a HostAgent. KernelOf is the real one, *kerneltest.Kernel the one for tests.
type Kernel interface {
	kernel.Kernel
	tc.Shapes
	conntrack.Table
	announce.Announcements
	wgkernel.Devices
}

// KernelOf returns the kernel behind a connection.
func KernelOf(c *kernel.Conn) Kernel {
	return struct {
		kernel.Kernel
		tc.Shapes
		conntrack.Table
		announce.Announcements
		wgkernel.Devices
	}{c, tc.New(c), conntrack.New(c.Namespace()), announce.New(c.Namespace()), wgkernel.New(c.Namespace())}
}

// Config has the parameters of a HostAgent.
type Config struct {
	Kernel   Kernel
	NodeName string
	Logger   *zap.Logger
	// MTUFile is where the CNI plugin reads the MTU of workloads, usually /var/lib/calico/mtu; empty: no file.
	MTUFile string
	// EndpointStatusDir is the folder where CNI plugins read which workloads are connected, usually
	// /var/run/calico/endpoint-status, given endpointStatusPathPrefix of FelixConfiguration; empty, or nil: no folder.
	// A folder that depends on the prefix is used only while nobody but root can change its content.
	EndpointStatusDir func(prefix string) string
	// Connected is called with the same when it has changed; may be nil. It must not block.
	Connected func(map[model.Key]endpointstatus.Status)
	// Moved is called when Moves has changed; may be nil. It must not block.
	Moved func()
	// Felix has the settings of this host, which come before those of FelixConfigurations; nil: none.
	Felix *felixconfig.Local
	// Repaired is called with the undone changes of other programs, and how many more there were; nil: no call. It must
	// not block.
	Repaired func(target string, list []reconcile.Repair, more int)
	// Links is called with the kernel's events when interfaces, addresses or routes of other programs may have changed;
	// nil: no call. It must not block, nor keep or change the events.
	Links func([]kernel.Event)
	// Reassembly is the room for incomplete packets that the host gets; the zero value leaves it as it is.
	Reassembly sysctl.Reassembly
	// PolicyOnly leaves the network of pods to another program; see hoststate.Host.PolicyOnly.
	PolicyOnly bool
	// WithPolicy requires that a workload also has its policy first; see SetPolicy.
	WithPolicy bool
	// Probe asks other nodes which packets get there, as EchoOf does; nil: nothing asks. See package pathmtu. Packets
	// with the mark, if it is not 0, are not encrypted.
	Probe func(from, to netip.Addr, mark uint32) (pathmtu.Prober, error)
	// Offload asks other nodes which checksums get there, as OffloadOf does; nil: nothing asks. With RepairOffload a
	// device whose checksums the hardware spoils computes them itself. See package offload.
	Offload       offload.Prober
	RepairOffload bool
	// EncryptionRequired sends no packet of workloads to other nodes unencrypted.
	EncryptionRequired bool
	// Keys is called with the public keys of this node for WireGuard when they have changed; nil: no call. It must not
	// block.
	Keys func(wireguard.Keys)
	// OwnersFile keeps the owners of the cluster's addresses for the next run; empty: nothing does. It is best on a
	// file system that is empty after a start of the host.
	OwnersFile string
}

// HostAgent is the Agent of interfaces, routes, limits of bandwidth and the files that report workloads. It also
// watches the kernel for others; see Config.Links.
type HostAgent struct {
	*Agent
	kernel  Kernel
	sysctls *sysctl.Target
	routes  *route.Target
	files   *endpointstatus.Files
	owners  *owners.Target
	moves   *moves.Target
	entries *vxlan.Target
	paths   *pathmtu.Target
	crypto  *wireguard.Target
	offload *offload.Target
	phases  atomic.Pointer[map[model.Key]livemigration.Phase]
	refused hoststate.Refusals
	links   func([]kernel.Event)
}

// New makes a HostAgent; Run starts it.
func New(c Config) *HostAgent { return newHostAgent(c, time.Now) }

func newHostAgent(c Config, now func() time.Time) *HostAgent {
	h := &HostAgent{kernel: c.Kernel, links: c.Links, routes: route.New(c.Kernel, now),
		sysctls: sysctl.New(c.Kernel, c.Reassembly, now)}
	devices, nearby := device.New(c.Kernel, now, c.Logger), neighbour.New(c.Kernel, now)
	mtu := mtufile.New(c.Kernel, c.MTUFile, now)
	wake := func() { h.put(func(b *batch) { b.woken = true }) }
	h.entries = vxlan.New(c.Kernel, now, wake)
	h.crypto = wireguard.New(wireguard.Config{Kernel: c.Kernel, Now: now, Required: c.EncryptionRequired,
		Refuse: h.routes.RefuseToPlace, RefuseHost: h.routes.RefuseHost, NoHosts: noHosts(c),
		Missing: devices.Missing, Publish: c.Keys})
	h.files = endpointstatus.NewFiles(endpointstatus.FilesConfig{
		Folder: c.EndpointStatusDir, WithPolicy: c.WithPolicy, Connected: c.Connected, Logger: c.Logger, Now: now,
		Routed: func(e endpointstatus.Endpoint, p netip.Prefix) bool {
			if !h.host.Connects(e.Interface) {
				return h.routes.HasLink(e.Interface)
			}
			return h.routes.ServesEndpoint(p, e.Key.Namespace+"/"+e.Key.Name)
		},
	})
	loop := reconcile.NewLoop()
	h.owners = owners.New(owners.Config{Connections: c.Kernel, Loop: loop, Now: now, Logger: c.Logger,
		File: c.OwnersFile})
	h.moves = moves.New(moves.Config{Kernel: c.Kernel, Now: now, Logger: c.Logger,
		Wake: wake,
		Changed: func(phases map[model.Key]livemigration.Phase) {
			list := route.Moves{}
			for k, phase := range phases {
				list[k.Namespace+"/"+k.Name] = phase
			}
			h.routes.SetMoves(list)
			h.phases.Store(&phases)
			if c.Moved != nil {
				c.Moved()
			}
		}})
	h.paths = pathmtu.New(pathmtu.Config{Open: h.probeBy(c.Probe), Way: h.routes.WayTo, Devices: devices.Devices,
		Loop: loop,
		Now:  now,
		Changed: func(paths map[netip.Addr]int) {
			h.routes.SetPaths(paths)
			wake()
		}})
	h.offload = offload.New(offload.Config{Prober: c.Offload, Repair: c.RepairOffload, Way: h.routes.WayTo,
		Devices: devices.Devices, Release: kernel.Release(), Loop: loop, Now: now,
		Avoid: func(list map[string]bool) {
			devices.AvoidOffload(list)
			wake()
		}})
	h.Agent = &Agent{
		targets: []Target{
			h.moves, // routes follow them
			devices,
			h.sysctls,
			peering.New(c.Kernel, now), // where IPv6 is disabled, no address can be added
			mtu,
			h.entries, // of devices
			h.crypto,
			h.routes, // need interfaces, and lead through entries
			h.paths,  // follows the routes of others
			h.offload,
			nearby, // needs the routes' next hops
			proxyneighbour.New(c.Kernel, func(k model.Key, p netip.Prefix) bool {
				return h.routes.ServesEndpoint(p, k.Namespace+"/"+k.Name)
			}, now),
			shape.New(c.Kernel, now),
			h.owners,
			h.files, // the files report the state reached
		},
		events: source{h.watch, h.eventsLost},
		voice: voice{zap.WarnLevel, "the kernel is not as it should be, trying again",
			"the kernel is as it should be"},
		log: c.Logger, now: now, loop: loop,
		host: hostOf(c), problems: map[string]string{},
		repaired: c.Repaired,
		onState:  func(state *hoststate.Host) { h.refused.Take(state, h.now(), h.log) },
	}
	devices.FollowDevices(func(l kernel.Link) {
		h.entries.DeviceChanged(l)
		h.crypto.SeeLink(l)
	})
	h.routes.FollowMissing(devices.Missing)
	h.routes.FollowRefusals(func() {
		h.crypto.DecideAgain()
		wake() // its turn in this step is over
	})
	devices.FollowRoutes(h.routes.LeadThrough)
	h.host.Underlay.Unread = true
	h.routes.FollowRoutesOfOthers(func() {
		h.paths.RoutesChanged()
		h.offload.RoutesChanged()
	})
	h.routes.FollowUnderlay(func(u hoststate.Underlay) {
		h.host.Underlay = u
		devices.DecideAgain()
		mtu.DecideAgain()
		wake()
	})
	if !c.PolicyOnly { // else no packet of this node depends on them
		h.routes.FollowNextHops(func(list []kernel.NextHop) {
			if nearby.SetNextHops(list) {
				wake() // a step for learned routes alone would not set them
			}
		})
	}
	h.routes.ForgetConnections(c.Kernel, h.loop, c.Logger)
	h.routes.AddressesWait(h.owners.Waits)
	return h
}

// probeBy returns the way to measure the paths to other nodes, which no tunnel takes.
func (h *HostAgent) probeBy(probe func(from, to netip.Addr, mark uint32) (pathmtu.Prober, error),
) func(from, to netip.Addr) (pathmtu.Prober, error) {
	if probe == nil {
		return nil
	}
	return func(from, to netip.Addr) (pathmtu.Prober, error) { return probe(from, to, h.PlainMark()) }
}

// PlainMark returns the mark of packets of this host that WireGuard does not take, 0 if it takes none. It is safe for
// concurrent use.
func (h *HostAgent) PlainMark() uint32 { return h.crypto.PlainMark() }

// noHosts is why packets between nodes themselves cannot be encrypted, empty if they can.
func noHosts(c Config) string {
	if !c.WithPolicy {
		return "packets between the nodes themselves are not encrypted: that needs --policy, whose rules let packets " +
			"in by both ways"
	}
	return ""
}

func hostOf(c Config) *hoststate.Host {
	h := hoststate.New(c.NodeName, c.Felix)
	h.PolicyOnly = c.PolicyOnly
	return h
}

// Run is that of Agent.
func (h *HostAgent) Run(ctx context.Context) error {
	defer h.owners.Save()
	defer h.moves.Close()
	defer h.entries.Close()
	defer context.AfterFunc(ctx, h.paths.Close)()
	defer context.AfterFunc(ctx, h.offload.Close)()
	return h.Agent.Run(ctx)
}

// Moves returns the phases of the workloads of this host that move. The map must not be changed.
func (h *HostAgent) Moves() map[model.Key]livemigration.Phase {
	if p := h.phases.Load(); p != nil {
		return *p
	}
	return nil
}

// SetPolicy sets the endpoints whose policy is in the kernel. Its map belongs to the agent from then on.
func (h *HostAgent) SetPolicy(p endpointstatus.Policy) {
	h.files.SetPolicy(p)
	h.put(func(b *batch) { b.woken = true })
}

// SetServers sets addresses of servers that the host needs, with their names: no workload gets a route for one.
// Packets between nodes to and from the endpoints, those of the datastore, are never encrypted.
func (h *HostAgent) SetServers(servers map[netip.Addr]string, endpoints []netip.AddrPort) {
	h.mu.Lock()
	h.routes.SetServers(servers)
	h.crypto.SetServers(endpoints)
	h.mu.Unlock()
	h.put(func(b *batch) { b.woken = true })
}

// Place takes over on which nodes prefixes are, by IPAM's blocks; synced is set once all blocks have been read.
func (h *HostAgent) Place(changes []route.Place, synced bool) {
	h.mu.Lock()
	h.routes.Place(changes)
	h.routes.SetPlacesSynced(synced)
	for _, c := range changes {
		h.crypto.Place(c.Prefix, c.Node)
	}
	h.crypto.SetPlacesSynced(synced)
	h.mu.Unlock()
	h.put(func(b *batch) { b.woken = true })
}

// Encryption returns, for each other node of a family that is encrypted, whether packets to it are.
func (h *HostAgent) Encryption() []wireguard.PeerStatus {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.crypto.Peers()
}

func (h *HostAgent) watch(ctx context.Context, works func()) error {
	return h.kernel.Watch(ctx, func(events []kernel.Event) {
		works()
		if h.links != nil && slices.ContainsFunc(events, kernel.Event.AboutOthers) {
			h.links(events)
		}
		h.addEvents(events)
	}, route.OwnTables()...)
}

func (h *HostAgent) eventsLost(err error) {
	if err != nil {
		h.log.Error("kernel events are lost, trying again", zap.String("target", "kernel"), zap.Error(err))
	}
}

// Retry is requestRetry of the Agent; routes come first in the result.
func (h *HostAgent) Retry(ctx context.Context) ([]Retried, error) {
	list, err := h.requestRetry(ctx)
	if i := slices.IndexFunc(list, func(r Retried) bool { return r.Part == "routes" }); i > 0 {
		routes := list[i]
		list = slices.Insert(slices.Delete(list, i, i+1), 0, routes)
	}
	return list, err
}

// Status is the state of the agent.
type Status struct {
	// Started is set once there was a state to act upon and the kernel has been read.
	Started bool
	// Synced is set while leftovers may be removed.
	Synced bool
	// Failed is the number of routes, and of interfaces and their settings, that are tried again.
	Failed int
	// NotForwarding is why this host should be a router and is none; empty if that is not so.
	NotForwarding string
	// LastError is the error of the last failed read or watch of the kernel, empty if both work.
	LastError string
	// RefusedEndpoints are the workloads of this host that get no route, no rules and no settings; Subject is the text
	// of their key.
	RefusedEndpoints []Notice
	// Notices are further facts for people.
	Notices []Notice
}

// Status returns how the agent is.
func (h *HostAgent) Status() Status {
	h.mu.Lock()
	defer h.mu.Unlock()
	listed, err := h.routes.Listed()
	s := Status{
		Started: listed && h.host.Known(), Synced: h.host.DatastoreSynced && h.host.BGPSynced,
		NotForwarding: h.sysctls.NotForwarding(), RefusedEndpoints: h.refused.List(), Notices: h.notices(),
	}
	for _, x := range h.health() {
		if x.Part == "routes" || x.Part == "interfaces" {
			s.Failed += x.Failures
		}
	}
	for _, err := range []error{err, h.watchErr} {
		if err != nil {
			s.LastError = err.Error()
		}
	}
	return s
}

// OfOthers returns the state of a workload that another network connects to an interface of this host; false: this host
// connects it.
func (h *HostAgent) OfOthers(iface string) (reconcile.Status, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.host.Connects(iface):
		return reconcile.Status{}, false
	case !h.routes.HasLink(iface):
		return reconcile.Status{Phase: reconcile.Blocked, Reason: "the CNI plugin of another network connects this " +
			"workload, and interface " + iface + ", where its policy would be enforced, does not exist or is " +
			"down"}, true
	}
	return reconcile.Status{Phase: reconcile.Applied, Reason: "the plugin of another network makes its routes"}, true
}

// Routes returns the route table for users, sorted by prefix.
func (h *HostAgent) Routes() []route.Status {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.routes.Statuses()
}

// RouteCounts returns how many prefixes are in each phase.
func (h *HostAgent) RouteCounts() map[reconcile.Phase]int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.routes.Counts()
}

// Route returns the row of one prefix, false if there is none.
func (h *HostAgent) Route(p netip.Prefix) (route.Status, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.routes.Status(p)
}

// RouteTo returns the row of the most specific prefix with an address for which the kernel has a route of this node,
// false if there is none.
func (h *HostAgent) RouteTo(a netip.Addr) (route.Status, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.routes.Towards(a)
}

// RouteChanges are the rows of routes that change, for one follower.
type RouteChanges struct {
	agent   *HostAgent
	changes *route.Changes
}

// FollowRoutes begins to remember which rows change, until Close.
func (h *HostAgent) FollowRoutes() *RouteChanges {
	h.mu.Lock()
	defer h.mu.Unlock()
	return &RouteChanges{h, h.routes.Follow()}
}

// Take returns the rows that may differ since the last call, in no order; those that are gone have no Phase. If all is
// true, as it is the first time, these are all rows there are.
func (r *RouteChanges) Take() (rows []route.Status, all bool) {
	r.agent.mu.Lock()
	defer r.agent.mu.Unlock()
	return r.agent.routes.Changed(r.changes)
}

// Close ends a FollowRoutes.
func (r *RouteChanges) Close() {
	r.agent.mu.Lock()
	defer r.agent.mu.Unlock()
	r.agent.routes.Unfollow(r.changes)
}
