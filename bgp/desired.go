package bgp

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"net/netip"
	"slices"

	"github.com/manxnet/manx/datastore/felixconfig"
	"github.com/manxnet/manx/datastore/livemigration"
	"github.com/manxnet/manx/datastore/model"
)

// Input is everything that the desired state of one node follows from.
type Input struct {
	Reader model.Reader
	Node   string // name of the node that we are
	// RouterID is the setting CALICO_ROUTER_ID: empty for the node's IPv4 address, an IPv4 address, or "hash".
	RouterID string
	// ClusterIPs is the setting CALICO_ADVERTISE_CLUSTER_IPS: CIDRs, comma separated, instead of those of
	// serviceClusterIPs; empty for the latter.
	ClusterIPs string
	// Felix has the settings of this host, which come before those of FelixConfigurations; nil: none.
	Felix *felixconfig.Local
	// Refuse selects the routes refused from peers if annotations of BGPConfiguration select none.
	Refuse RefuseSettings
	// Moves are the phases of this host's workloads that move.
	Moves map[model.Key]livemigration.Phase
	// Connected are the subnets that the host is on.
	Connected []netip.Prefix
	// Kernel are the routes of other programs and the connected networks in the host's kernel, each prefix once.
	Kernel []KernelRoute
	// Passwords may be nil: then no secret can be read.
	Passwords PasswordSource
}

// PasswordSource returns the value of a key of a secret. An error is why it cannot be read; a password beside an error
// is the one that was read last. It returns at once; only at a start it may wait some seconds for its source.
type PasswordSource interface {
	Password(secret, key string) (string, error)
	// Place names the place where the password is expected.
	Place(secret, key string) string
}

// Kinds returns the kinds of the objects that Compute reads.
func Kinds() []model.Kind {
	return []model.Kind{model.KindNode, model.KindIPPool, model.KindBGPConfiguration, model.KindBGPPeer,
		model.KindBGPFilter, model.KindFelixConfiguration, model.KindWorkloadEndpoint, model.KindBlockAffinity,
		model.KindService, model.KindEndpointSlice, model.KindMigration}
}

// Compute decides which BGP sessions and originated routes the node should have. It has no side effects; the result
// depends on the objects only, not on the order in which they came.
func Compute(in Input) Desired {
	c := newCluster(in.Reader, in.Node)
	c.clusterIPs, c.connected, c.kernel = in.ClusterIPs, in.Connected, in.Kernel
	c.host, c.felix = in.Felix, felixconfig.Merge(in.Reader, in.Node, in.Felix)
	c.interfaces = felixconfig.ParseInterfacePrefixes(c.felix.InterfacePrefix)
	c.filters, c.moves = compileFilters(in.Reader), c.phases(in)
	if c.me == nil {
		c.note("Node/"+in.Node, "does not exist: this node is not registered, so it has no BGP sessions")
		return Desired{Notices: c.sortedNotices()}
	}
	d := Desired{Global: c.global(in.RouterID), Drain: c.drain(), IPv4: c.me.addrs[ipv4]}
	p := planner{cluster: c, reader: in.Reader, passwords: in.Passwords, secrets: map[[2]string]secret{}}
	peerings := c.peerings(in.Reader)
	d.Sessions, d.Conflicts = settle(p.requests(peerings))
	p.chooseSide(d.Sessions, peerings)
	c.noteForeignSources(d.Sessions)
	c.drainPeers(d.Sessions)
	d.WorkloadPeers = slices.ContainsFunc(peerings, func(b *peering) bool {
		return b.workloads != nil && b.local(c.me)
	})
	d.Statics, d.Peering = statics(d.Sessions), c.peering(d.Sessions)
	d.Filters = c.usedFilters(d.Sessions)
	c.originate(in.Reader, &d)
	d.Refusals = c.refusals(in.Reader, c.refuseSettings(in.Reader, in.Node, in.Refuse), d.Originated,
		in.Connected)
	d.Notices = c.sortedNotices()
	return d
}

func (c *cluster) global(routerID string) Global {
	g := Global{LocalAS: c.me.as, ListenPort: c.me.port, RouterID: c.routerID(routerID)}
	if c.config.BindMode != nil && *c.config.BindMode == bindNodeIP {
		for _, a := range c.me.addrs {
			if a.IsValid() {
				g.ListenAddresses = append(g.ListenAddresses, a)
			}
		}
	}
	return g
}

// routerID follows the setting. A node without an IPv4 address needs a router ID too: it gets the one of "hash",
// which is as stable as its name.
func (c *cluster) routerID(setting string) netip.Addr {
	own := c.me.addrs[ipv4]
	switch setting {
	case "":
	case "hash":
		return hashRouterID(c.me.name)
	default:
		if a, err := netip.ParseAddr(setting); err == nil && a.Is4() && !a.IsUnspecified() {
			return a
		}
		c.note("Node/"+c.me.name, fmt.Sprintf("CALICO_ROUTER_ID = %q is ignored: want an IPv4 address or \"hash\"",
			setting))
	}
	if own.IsValid() {
		return own
	}
	return hashRouterID(c.me.name)
}

// hashRouterID derives a router ID from a name, as calico/node does: the first bytes of its SHA-256, moved below the
// multicast range.
func hashRouterID(name string) netip.Addr {
	sum := sha256.Sum256([]byte(name))
	b := [4]byte(sum[:4])
	if b[0] > 223 {
		b[0] -= 32
	}
	return netip.AddrFrom4(b)
}

func (c *cluster) note(object, reason string) {
	c.notices = append(c.notices, Notice{Object: object, Reason: reason})
}

func (c *cluster) sortedNotices() []Notice {
	slices.SortFunc(c.notices, func(a, b Notice) int {
		return cmp.Or(cmp.Compare(a.Object, b.Object), cmp.Compare(a.Reason, b.Reason))
	})
	return slices.Compact(c.notices)
}
