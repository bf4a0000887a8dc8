package policy

import (
	"iter"
	"maps"
	"net/netip"
	"slices"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"

	"github.com/manxnet/manx/dataplane/overlay"
	"github.com/manxnet/manx/dataplane/policy/labels"
	"github.com/manxnet/manx/dataplane/ruleset"
	"github.com/manxnet/manx/datastore/conversion"
	"github.com/manxnet/manx/datastore/felixconfig"
	"github.com/manxnet/manx/datastore/model"
)

// Kinds are the kinds of the objects that rules are computed from.
var Kinds = []model.Kind{
	model.KindFelixConfiguration, model.KindIPPool, model.KindNode, model.KindBGPConfiguration, model.KindBGPPeer,
	model.KindTier, model.KindProfile,
	model.KindNetworkSet, model.KindGlobalNetworkSet, model.KindWorkloadEndpoint, model.KindHostEndpoint,
	model.KindEndpointSlice, model.KindNetworkPolicy, model.KindGlobalNetworkPolicy,
	model.KindStagedNetworkPolicy, model.KindStagedGlobalNetworkPolicy, model.KindStagedKubernetesNetworkPolicy,
	model.KindKubernetesNetworkPolicy, model.KindClusterNetworkPolicy, model.KindNamespace, model.KindServiceAccount,
}

// Calculator computes the ruleset.Table of one node. The outcome depends on the newest state only, not on the way
// there, once nothing waits for Continue or Reconsider, but for the names of sets that several selectors share. The
// cost of an update is proportional to the change. Not safe for concurrent use.
type Calculator struct {
	config Config
	table  output
	reader model.Reader
	steps  []step

	settings   currentSettings
	nodes      nodeNets
	bgpPorts   bgpPorts
	claimed    claimed
	sets       *memberSets
	literals   literals
	endpoints  endpoints
	subjects   *labels.Index[*endpoint, ID] // the policies that select an endpoint
	lists      lists
	policies   policies
	spaces     spaces
	hosts      hosts
	tunnels    tunnelDevices
	translated translated
	dscps      dscps
	bad        map[model.Key]string // why objects cannot be used
}

// Config has the settings of the node's administrator.
type Config struct {
	Node string
	// Counters makes every rule of a policy count packets and bytes. Rules of staged policies always do.
	Counters bool
	// FlowLog sends the headers of packets that policy drops, or logs, to this NFLOG group; 0 for nowhere. See
	// ParseLogPrefix.
	FlowLog uint16
	// NoKernelLog keeps Log rules from writing to the kernel's log, which not every kernel lets them.
	NoKernelLog bool
	// NoNamedCounters leaves packets that are dropped uncounted, as a kernel without such counters needs.
	NoNamedCounters bool
	// Fragments bounds the IP fragments that a workload may send.
	Fragments Fragments
	// Budget bounds what the policies of a namespace cost.
	Budget Budget
	// TrustOutside lets packets in from outside whose source is an address of this host or of one of its workloads.
	TrustOutside bool
	// ClampMSS lowers the maximum segment size of TCP connections through this host to the MTU of their routes.
	ClampMSS bool
	// EncryptionRequired drops packets of workloads that leave for addresses of pools unencrypted, of families that
	// this node encrypts.
	EncryptionRequired bool
	// Overlays are those between nodes; nil: all of this version.
	Overlays []overlay.Overlay
	// Felix has the settings of this host, which come before those of FelixConfigurations; nil: none.
	Felix *felixconfig.Local
}

// New makes a Calculator with an empty state: nothing is allowed or forbidden before the first Update.
func New(c Config) *Calculator {
	calc := &Calculator{
		config: c, table: output{ruleset.NewTable(), c.NoNamedCounters}, steps: steps,
		claimed: claimed{of: map[model.Key]bool{}}, policies: newPolicies(), spaces: spaces{of: map[string]*space{}},
		hosts: hosts{verdicts: map[string]map[string]bool{}}, bad: map[model.Key]string{},
	}
	t, s := calc.table.Table, &calc.settings.settings
	calc.settings.dirty = true
	calc.nodes = newNodeNets(t)
	calc.bgpPorts = newBGPPorts(t)
	calc.sets = newMemberSets(t, s)
	calc.literals = literals{table: t, users: map[string]int{}}
	calc.endpoints = newEndpoints(t, s)
	calc.dscps = dscps{table: t, of: map[model.Key]ruleset.DSCP{}, sources: map[ruleset.DSCP]nodeNets{}}
	calc.lists = lists{table: t, of: map[string]*list{}}
	calc.subjects = labels.New(calc.subjectStarted, calc.subjectStopped)
	return calc
}

// Build computes everything for one node from scratch.
func Build(c Config, r model.Reader, links map[string][]netip.Addr) *Calculator {
	calc := New(c)
	calc.SetInterfaces(links)
	calc.Update(r)
	return calc
}

// Table is the outcome. It belongs to the Calculator: take its changes after each Update.
func (c *Calculator) Table() *ruleset.Table { return c.table.Table }

// Update applies changed objects, all if none are named, and brings the table up to date. After named changes it leaves
// large policies of namespaces to Continue.
func (c *Calculator) Update(r model.Reader, changed ...model.Key) {
	c.reader, c.sets.allowance = r, light
	if len(changed) == 0 {
		c.takeAll(r)
		c.sets.allowance = unlimited
	}
	for _, k := range changed {
		c.take(k, r.Get(k))
	}
	c.settle()
}

func (c *Calculator) takeAll(r model.Reader) {
	c.settings.dirty = true // their sources may be gone
	for _, k := range c.known() {
		if r.Get(k) == nil {
			c.take(k, nil)
		}
	}
	for _, kind := range Kinds {
		for o := range r.All(kind) {
			c.take(o.Key, o)
		}
	}
}

// known lists all objects that were taken.
func (c *Calculator) known() []model.Key {
	var keys []model.Key
	c.sets.items.Ascend(func(it *item) bool {
		keys = append(keys, it.key)
		return true
	})
	for id := range c.policies.of {
		keys = append(keys, model.Key(id))
	}
	for name := range c.policies.profiles {
		keys = append(keys, model.ResourceKey(model.KindProfile, name))
	}
	for name := range c.policies.tiers {
		keys = append(keys, model.ResourceKey(model.KindTier, name))
	}
	for name := range c.nodes.of {
		if name != "" {
			keys = append(keys, model.ResourceKey(model.KindNode, name))
		}
	}
	keys = slices.AppendSeq(keys, maps.Keys(c.sets.services.of))
	keys = slices.AppendSeq(keys, maps.Keys(c.endpoints.routers))
	keys = slices.AppendSeq(keys, maps.Keys(c.bgpPorts.of))
	return slices.AppendSeq(keys, maps.Keys(c.bad))
}

// SetInterfaces sets the host's interfaces and their addresses, which decides about HostEndpoints. It takes effect at
// the next Update or Settle.
func (c *Calculator) SetInterfaces(links map[string][]netip.Addr) {
	c.hosts.dirty = c.hosts.dirty || !maps.EqualFunc(c.withoutWorkloads(c.hosts.links), c.withoutWorkloads(links),
		slices.Equal[[]netip.Addr])
	c.hosts.links = links
}

// SetTunnels sets the devices of overlays that exist on this host, by name, whoever uses them. It takes effect at the
// next Update or Settle.
func (c *Calculator) SetTunnels(devices map[string]TunnelDevice) {
	c.tunnels.dirty = c.tunnels.dirty || !maps.Equal(devices, c.tunnels.devices)
	c.tunnels.devices = devices
}

// withoutWorkloads returns the interfaces that may have a host endpoint.
func (c *Calculator) withoutWorkloads(links map[string][]netip.Addr) map[string][]netip.Addr {
	own := map[string][]netip.Addr{}
	for name, addresses := range links {
		if !c.settings.isWorkload(name) {
			own[name] = addresses
		}
	}
	return own
}

// Settle brings the table up to date after SetInterfaces and SetTunnels.
func (c *Calculator) Settle() {
	c.sets.allowance = light
	c.settle()
}

// take adds one object; nil is gone.
func (c *Calculator) take(k model.Key, o *model.Object) {
	c.settings.dirty = c.settings.dirty || c.concernsSettings(k)
	switch k.Kind {
	case model.KindIPPool:
		c.claimed.dirty, c.translated.dirty = true, true
	case model.KindBGPConfiguration:
		c.bgpPorts.take(k, listenPort(k.Name, value[model.BGPConfiguration](o)))
	case model.KindBGPPeer:
		c.bgpPorts.take(k, peerPort(value[model.BGPPeer](o)))
		c.endpoints.takeRouters(k, value[model.BGPPeer](o))
	case model.KindNode:
		c.takeNode(k.Name, value[model.Node](o))
		c.claimed.dirty = true
	case model.KindTier:
		c.takeTier(k.Name, value[model.Tier](o))
	case model.KindProfile:
		c.takeProfile(k.Name, value[v3.Profile](o))
	case model.KindNamespace:
		c.takeProfile(conversion.NamespaceProfile(k.Name), conversion.Profile(o))
	case model.KindServiceAccount:
		c.takeProfile(conversion.ServiceAccountProfile(k.Namespace, k.Name), conversion.Profile(o))
	case model.KindNetworkSet:
		c.sets.takeNetworkSet(k, value[v3.NetworkSet](o))
	case model.KindGlobalNetworkSet:
		c.sets.takeGlobalNetworkSet(k, value[v3.GlobalNetworkSet](o))
	case model.KindWorkloadEndpoint:
		c.takeWorkload(k, o.Workload())
	case model.KindHostEndpoint:
		c.takeHost(k, value[v3.HostEndpoint](o))
	case model.KindEndpointSlice:
		c.sets.takeSlice(k, value[model.EndpointSlice](o))
	default:
		if IsPolicy(k.Kind) {
			c.takePolicy(k, o)
		}
	}
}

func value[T any](o *model.Object) *T {
	if o == nil {
		return nil
	}
	v, _ := o.Value.(*T)
	return v
}

// IsPolicy reports whether objects of a kind are policies, staged ones among them.
func IsPolicy(k model.Kind) bool {
	switch k {
	case model.KindNetworkPolicy, model.KindGlobalNetworkPolicy, model.KindStagedNetworkPolicy,
		model.KindStagedGlobalNetworkPolicy,
		model.KindStagedKubernetesNetworkPolicy, model.KindKubernetesNetworkPolicy, model.KindClusterNetworkPolicy:
		return true
	}
	return false
}

// dirty is what has changed since the last settle.
type dirty[T comparable] map[T]bool

func (d *dirty[T]) add(x T) {
	if *d == nil {
		*d = dirty[T]{}
	}
	(*d)[x] = true
}

// step is one part of settle. after names earlier steps without which its outcome is wrong: TestOrderOfSteps moves it
// before each of them.
type step struct {
	name  string
	run   func(*Calculator)
	after []string
}

// A step marks work only for later ones. The first three and spaces have no order among each other, but stand before
// the steps for which they mark endpoints, policies and sets.
var steps = []step{
	{name: "settings", run: (*Calculator).settleSettings},
	{name: "claimed", run: (*Calculator).settleClaimed},
	{name: "tunnels", run: (*Calculator).settleTunnels},
	{name: "spaces", run: (*Calculator).settleSpaces},
	{name: "set kinds", run: (*Calculator).settleSetKinds},
	{name: "policies", run: (*Calculator).settlePolicies, after: []string{"settings", "set kinds"}},
	{name: "claims", run: (*Calculator).settleClaims, after: []string{"settings"}},
	{name: "own addresses", run: (*Calculator).settleOwn, after: []string{"settings"}},
	{name: "hosts", run: (*Calculator).settleHosts, after: []string{"settings"}},
	{name: "endpoints", run: (*Calculator).settleEndpoints, after: []string{"claims"}},
	{name: "floating", run: (*Calculator).settleFloating, after: []string{"settings"}},
	{name: "collect", run: (*Calculator).collect, after: []string{"policies", "hosts", "endpoints"}},
}

// settle brings the table up to date with the received changes.
func (c *Calculator) settle() {
	for _, s := range c.steps {
		s.run(c)
	}
	c.settings.changed = false
}

// Bad visits the objects that cannot be used, with the reason.
func (c *Calculator) Bad() iter.Seq2[model.Key, string] { return maps.All(c.bad) }

// Workloads visits the interfaces of the workloads whose endpoints are known.
func (c *Calculator) Workloads() iter.Seq[string] {
	return func(yield func(string) bool) {
		for iface := range c.table.Verdicts(toWorkload) {
			if !yield(iface) {
				return
			}
		}
	}
}

// WorkloadCount returns the number of workloads.
func (c *Calculator) WorkloadCount() int {
	n := 0
	for range c.Workloads() {
		n++
	}
	return n
}

// Workload names the endpoint that has an interface, nil if none is known.
func (c *Calculator) Workload(iface string) *model.Key {
	if e := c.endpoints.owner(iface); e != nil {
		return &e.key
	}
	return nil
}
