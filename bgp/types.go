package bgp

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/manxnet/manx/datastore/model"
)

// MaxPriority is the LOCAL_PREF of a route with kernel metric 0: LOCAL_PREF = MaxPriority - metric, as BIRD in
// calico/node has it.
const MaxPriority = 1<<31 - 1

// DefaultLocalPref is the LOCAL_PREF of routes that carry none. RFC 4271 section 9.1.1 leaves it to the speaker; BIRD
// and most others use 100.
const DefaultLocalPref = 100

// NormalPriority is the kernel metric of an ordinary route when BGPConfiguration sets none.
const NormalPriority = 1024

// Desired is the complete configuration of the speaker. It is plain data: equal values require no change.
type Desired struct {
	Global    Global
	Sessions  []Session  // sorted by family, address as text, port; addresses are unique
	Conflicts []Conflict // requested sessions that are not configured; sorted by address
	// objects, or fields of them, with no effect or another than intended; sorted
	Notices    []Notice
	Originated []Origin     // sorted by prefix
	Addresses  []netip.Addr // of the node itself and of its tunnel devices; sorted
	IPv4       netip.Addr   // of the node itself; invalid if it has none

	// The next two decide which learned routes the speaker may pass on to other peers, whatever their type: those that
	// lie inside one of ExportPrefixes and not inside one of NoExportPrefixes. A default route from one switch
	// therefore never reaches another, and hidden routes in an own block stay hidden. The speaker's own routes
	// (Originated) are decided here and need no check.
	//
	// Inside OwnBlocks, routes with one of the Elevated priorities are passed on all the same: a workload that moves
	// between nodes is announced by both for a while.
	ExportPrefixes   []netip.Prefix // IP pools and own services; on a route reflector all services; sorted
	NoExportPrefixes []netip.Prefix // IP pools with disableBGPExport, and own blocks; sorted
	// the own blocks of NoExportPrefixes, but for those in pools with disableBGPExport; sorted
	OwnBlocks []netip.Prefix
	Services  []netip.Prefix // the services of ExportPrefixes; sorted
	// by family, IPv4 first: metrics below the ordinary one that routes can have; sorted
	Elevated [2][]uint32
	Tags     []Tag // communities of exported routes, from prefixAdvertisements

	Refusals  Refusals       // of routes of peers, in the order of evaluation; before Filters
	Filters   []Filter       // those that sessions name, sorted by name
	Statics   []Static       // kernel routes that peers are reached by; sorted by prefix
	Peering   []Peering      // addresses on the interfaces of workloads that we peer with; sorted
	NoInstall []netip.Prefix // learned routes inside one of these are not for the kernel; sorted
	Drain     Drain

	// WorkloadPeers is set where a BGPPeer may make peers of workloads of this node.
	WorkloadPeers bool
	// ServiceNode is the node name of local endpoints of services; empty where no single service matters.
	ServiceNode string
}

// Tag lists the communities that exported routes inside a prefix get.
type Tag struct {
	Prefix           netip.Prefix
	Communities      []uint32    // RFC 1997
	LargeCommunities [][3]uint32 // RFC 8092
}

// Static is a kernel route to a peer through a gateway (BGPPeer reachableBy).
type Static struct {
	Prefix netip.Prefix
	Via    netip.Addr
}

// Peering is an address of this node that a local workload peers with (BGPConfiguration localWorkloadPeeringIPV4 and
// localWorkloadPeeringIPV6), on the interface of that workload.
type Peering struct {
	Interface string
	Address   netip.Addr
}

// Drain is the progress of this node's withdrawal from the network for maintenance.
type Drain string

const (
	DrainNone      Drain = ""          // in service
	DrainDraining  Drain = "draining"  // routes carry GRACEFUL_SHUTDOWN and the lowest preference (RFC 8326)
	DrainWithdrawn Drain = "withdrawn" // no routes are announced
)

// Global has the settings of the whole speaker; a change of it needs a new speaker.
type Global struct {
	LocalAS         uint32
	RouterID        netip.Addr   // IPv4 form
	ListenPort      uint16       // 0: no listener
	ListenAddresses []netip.Addr // none: all
}

// Equal reports whether both have the same settings.
func (g Global) Equal(o Global) bool {
	return g.LocalAS == o.LocalAS && g.RouterID == o.RouterID && g.ListenPort == o.ListenPort &&
		slices.Equal(g.ListenAddresses, o.ListenAddresses)
}

func (g Global) String() string {
	return fmt.Sprintf("AS %d, router ID %s, port %d", g.LocalAS, g.RouterID, g.ListenPort)
}

// SessionType is the origin of a session.
type SessionType string

const (
	SessionMesh   SessionType = "mesh"   // node-to-node mesh
	SessionGlobal SessionType = "global" // BGPPeer without node and nodeSelector
	SessionNode   SessionType = "node"   // BGPPeer for this node, or the reverse of one
)

// NextHopMode is the handling of the next hop in routes sent to a peer.
type NextHopMode string

const (
	NextHopAuto NextHopMode = "auto"
	NextHopSelf NextHopMode = "self"
	NextHopKeep NextHopMode = "keep"
)

// Session is one BGP session that this node should have.
type Session struct {
	Address netip.Addr // of the peer; it also decides the one address family that the session carries
	Port    uint16     // the effective one
	Type    SessionType
	// the objects that configure it, first the one whose settings count: "BGPPeer/tor-1", "BGPConfiguration/default"
	From []string

	LocalAS uint32
	PeerAS  uint32
	Source  netip.Addr // invalid: the kernel chooses
	Via     netip.Addr // the gateway of the kernel route to the peer that we make (reachableBy); invalid: none
	Passive bool

	Password string // MD5 (RFC 2385); empty for none. Never logged or served.
	// "none", "set", or "missing": a password is wanted and there is none, so the session must stay down
	PasswordFrom string
	// PasswordError is why the password cannot be read, with secret and key. If "set", the last one that was read is in
	// use.
	PasswordError string

	MultihopTTL uint8 // 0 with TTL security
	TTLSecurity uint8 // hops (RFC 5082); 0 for off

	HoldSeconds      uint32
	KeepaliveSeconds uint32 // at most, and by default, a third of the hold time
	RestartSeconds   uint32 // graceful restart time that we announce

	ReflectorClient    bool
	ReflectorClusterID netip.Addr
	AllowOwnAS         uint32
	NextHop            NextHopMode
	Filters            []string // names of BGPFilters that exist, in order

	// Drain is the drain of this peer alone: while it is not InService, the routes of both directions are the last
	// choice.
	Drain model.DrainPhase

	Outsider    bool   // the peer is in another AS and no node of the cluster
	Workload    string // interface of the local workload that the peer is; empty for any other
	MaxPrefixes uint32 // limit on the prefixes of the peer; 0: the speaker's default
	BFD         BFD    // not part of the BGP session: a change does not touch it
}

// BFD configures how the path to a peer is monitored (RFC 5880); the zero value is off.
type BFD struct {
	Enabled    bool
	Transmit   time.Duration // desired minimum interval
	Receive    time.Duration // required minimum interval
	Multiplier uint8
	Multihop   bool  // RFC 5883 instead of RFC 5881
	MinTTL     uint8 // least TTL of the peer's packets where it is multihop; 0: any
}

// Conflict is a set of objects that configure one address differently.
type Conflict struct {
	Address netip.Addr
	Kept    string
	Dropped []string
	Reason  string
}

// Notice reports that an object of the datastore, or a part of it, is skipped.
type Notice struct {
	Object string // "BGPPeer/tor-1"
	Reason string // the fault and its correction
}

// KernelRoute is a route of another program, or a connected network, in the host's kernel.
type KernelRoute struct {
	Prefix    netip.Prefix // without host bits
	Interface string       // that traffic to it leaves by; empty for a route that drops it
	Metric    uint32       // without meaning for a connected network
	Connected bool
	Protocol  uint8 // of rtnetlink(7); 0 for a connected network
}

// Origin is one prefix that this node originates.
type Origin struct {
	// Withheld: only the blackhole is wanted, the prefix is not advertised to any peer
	// (a block that is being released, or one of a pool with disableBGPExport).
	Withheld         bool
	FilterOnly       bool   // it goes only to peers whose export filters accept it
	Interface        string // that traffic to it leaves by; empty for a block or a service
	Prefix           netip.Prefix
	LocalPref        uint32
	Communities      []uint32    // sorted
	LargeCommunities [][3]uint32 // sorted
	Shared           bool        // other nodes may announce it, too (an address of a service)
	Kernel           bool        // it is a route of the kernel, so that the kernel may learn others for it
	Yields           bool        // it is announced only while BGP has learned no route for the prefix
	Blackhole        bool        // the kernel gets a blackhole route for its unassigned addresses
}
