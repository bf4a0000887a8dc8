package plan

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/manxnet/manx/bgp"
	"github.com/manxnet/manx/datastore/felixconfig"
)

// Settings are the settings of a daemon from flags.
type Settings struct {
	Node       string
	RouterID   string // as CALICO_ROUTER_ID
	ClusterIPs string // as CALICO_ADVERTISE_CLUSTER_IPS
	// InterfacePrefix is as FELIX_INTERFACEPREFIX.
	InterfacePrefix string
}

// Compute returns the decisions of the node's daemon about a State.
func (s State) Compute(with Settings) bgp.Desired {
	var local felixconfig.Local
	local.Spec.InterfacePrefix = with.InterfacePrefix
	return bgp.Compute(bgp.Input{Reader: s.Objects, Node: with.Node, RouterID: with.RouterID,
		ClusterIPs: with.ClusterIPs, Felix: &local, Passwords: s.passwords})
}

// Plan is the BGP state of a node. Its JSON form is stable.
type Plan struct {
	Node string `json:"node"`
	BGP  BGP    `json:"bgp"`
}

// BGP is the speaker, its sessions and its routes.
type BGP struct {
	LocalAS    uint32     `json:"localAS"`
	RouterID   string     `json:"routerID"`
	ListenPort uint16     `json:"listenPort"`
	Sessions   []Session  `json:"sessions"`
	Conflicts  []Conflict `json:"conflicts"`
	Originated []Origin   `json:"originated"`
	// Exports are the own prefixes for each peer, by the peer's address.
	Exports map[string][]string `json:"exports"`
}

// Session is one BGP session.
type Session struct {
	Address          string   `json:"address"`
	Port             uint16   `json:"port"`
	Family           string   `json:"family"` // ipv4 or ipv6
	LocalAS          uint32   `json:"localAS"`
	PeerAS           uint32   `json:"peerAS"`
	Type             string   `json:"type"` // mesh, global or node
	Passive          bool     `json:"passive"`
	SourceAddress    string   `json:"sourceAddress"` // empty: the kernel chooses
	MultihopTTL      uint8    `json:"multihopTTL"`   // 0 with TTL security
	TTLSecurity      uint8    `json:"ttlSecurity"`   // hops; 0: off
	Password         string   `json:"password"`      // none, set or missing
	ReflectorClient  bool     `json:"reflectorClient"`
	RestartSeconds   uint32   `json:"restartSeconds"`
	KeepaliveSeconds uint32   `json:"keepaliveSeconds"` // 0: the default
	AllowOwnAS       uint32   `json:"allowOwnAS"`
	NextHop          string   `json:"nextHop"` // auto, self or keep
	Filters          []string `json:"filters"`
	From             []string `json:"from"`
}

// Conflict lists the unused objects for one address.
type Conflict struct {
	Address string   `json:"address"`
	Kept    string   `json:"kept"`
	Dropped []string `json:"dropped"`
	Reason  string   `json:"reason"`
}

// Origin is a prefix of the node's own.
type Origin struct {
	Prefix      string   `json:"prefix"`
	Communities []string `json:"communities"` // AA:NN, then AA:NN:MM
	Blackhole   bool     `json:"blackhole"`
}

// New returns the plan of a node.
func New(node string, d bgp.Desired) Plan {
	b := BGP{
		LocalAS: d.Global.LocalAS, RouterID: addrText(d.Global.RouterID), ListenPort: d.Global.ListenPort,
		Sessions: []Session{}, Conflicts: []Conflict{}, Originated: []Origin{}, Exports: map[string][]string{},
	}
	sent := map[netip.Prefix]bool{}
	for _, s := range d.Sessions {
		b.Sessions = append(b.Sessions, newSession(s))
		list := []string{}
		for _, p := range exports(d, s) {
			list = append(list, p.String())
			sent[p] = true
		}
		b.Exports[s.Address.String()] = list
	}
	for _, c := range d.Conflicts {
		b.Conflicts = append(b.Conflicts, Conflict{Address: c.Address.String(), Kept: c.Kept, Dropped: texts(c.Dropped),
			Reason: c.Reason})
	}
	for _, o := range d.Originated {
		if o.FilterOnly && !o.Blackhole && !sent[o.Prefix] {
			continue // irrelevant unless a filter exports it
		}
		b.Originated = append(b.Originated, Origin{Prefix: o.Prefix.String(), Communities: communityTexts(o),
			Blackhole: o.Blackhole})
	}
	return Plan{Node: node, BGP: b}
}

func newSession(s bgp.Session) Session {
	family := "ipv6"
	if s.Address.Is4() {
		family = "ipv4"
	}
	return Session{
		Address: s.Address.String(), Port: s.Port, Family: family, LocalAS: s.LocalAS, PeerAS: s.PeerAS,
		Type: string(s.Type), Passive: s.Passive,
		SourceAddress: addrText(s.Source), MultihopTTL: s.MultihopTTL, TTLSecurity: s.TTLSecurity,
		Password:        s.PasswordFrom,
		ReflectorClient: s.ReflectorClient, RestartSeconds: s.RestartSeconds, KeepaliveSeconds: s.KeepaliveSeconds,
		AllowOwnAS: s.AllowOwnAS, NextHop: string(s.NextHop), Filters: texts(s.Filters), From: texts(s.From),
	}
}

func addrText(a netip.Addr) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}

// texts returns an empty list for nil.
func texts(list []string) []string { return append([]string{}, list...) }

func communityTexts(o bgp.Origin) []string {
	list := []string{}
	for _, c := range o.Communities {
		list = append(list, fmt.Sprintf("%d:%d", c>>16, c&0xffff))
	}
	for _, c := range o.LargeCommunities {
		list = append(list, fmt.Sprintf("%d:%d:%d", c[0], c[1], c[2]))
	}
	return list
}

// exports lists the node's own prefixes for a peer.
func exports(d bgp.Desired, s bgp.Session) []netip.Prefix {
	var list []netip.Prefix
	for _, o := range d.Originated {
		if d.Drain == bgp.DrainWithdrawn || o.Withheld || o.Prefix.Addr().Is4() != s.Address.Is4() {
			continue
		}
		if d.Export(s, o.Candidate()).Accept {
			list = append(list, o.Prefix)
		}
	}
	return list
}

// Notices returns the notices of the daemon, as text.
func Notices(d bgp.Desired) []string {
	var list []string
	for _, n := range d.Notices {
		list = append(list, strings.TrimSpace(n.Object+": "+n.Reason))
	}
	return list
}
