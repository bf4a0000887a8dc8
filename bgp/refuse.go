package bgp

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/datastore/ownership"
)

// RefusalClass names a reason for which routes of peers are refused, for counters.
type RefusalClass string

const (
	RefusedUnspecified RefusalClass = "unspecified"      // 0.0.0.0/32, ::/128
	RefusedThisNetwork RefusalClass = "this_network"     // 0.0.0.0/8 (RFC 1122 section 3.2.1.3)
	RefusedLoopback    RefusalClass = "loopback"         // 127.0.0.0/8, ::1/128
	RefusedLinkLocal   RefusalClass = "link_local"       // 169.254.0.0/16 (RFC 3927), fe80::/10 (RFC 4291)
	RefusedMulticast   RefusalClass = "multicast"        // 224.0.0.0/4, ff00::/8
	RefusedReserved    RefusalClass = "reserved"         // 240.0.0.0/4 (RFC 1112 section 4)
	RefusedBroadcast   RefusalClass = "broadcast"        // 255.255.255.255/32 (RFC 919)
	RefusedMapped      RefusalClass = "ipv4_mapped"      // ::ffff:0:0/96 (RFC 4291 section 2.5.5.2)
	RefusedOwnAddress  RefusalClass = "own_address"      // an address of this node
	RefusedOwnPrefix   RefusalClass = "own_prefix"       // a block of this node
	RefusedDefault     RefusalClass = "default_route"    // by a setting
	RefusedLong        RefusalClass = "prefix_length"    // by a setting
	RefusedConnected   RefusalClass = "connected_subnet" // by a setting
	RefusedPool        RefusalClass = "pool"             // by a setting, from external peers
)

// RefusalClasses lists all classes.
func RefusalClasses() []RefusalClass {
	return []RefusalClass{RefusedUnspecified, RefusedThisNetwork, RefusedLoopback, RefusedLinkLocal, RefusedMulticast,
		RefusedReserved,
		RefusedBroadcast, RefusedMapped, RefusedOwnAddress, RefusedOwnPrefix, RefusedDefault, RefusedLong,
		RefusedConnected, RefusedPool}
}

// Refusal is a rule about routes that are refused before any filter is evaluated, so that no filter lets them in.
type Refusal struct {
	Class     RefusalClass
	Reason    string
	Match     PrefixMatch
	Also      []netip.Prefix // further prefixes that are refused, exactly; sorted
	Except    []netip.Prefix // with Outsiders: prefixes that are not refused although Match holds; sorted
	Outsiders bool           // holds for sessions with Session.Outsider alone
}

// Refusals are rules in the order of evaluation.
type Refusals []Refusal

// Equal reports whether both lists refuse the same for the same reasons.
func (list Refusals) Equal(other Refusals) bool {
	return slices.EqualFunc(list, other, func(a, b Refusal) bool {
		return a.Class == b.Class && a.Reason == b.Reason && a.Match == b.Match && a.Outsiders == b.Outsiders &&
			slices.Equal(a.Except, b.Except) && slices.Equal(a.Also, b.Also)
	})
}

// refuse returns the first rule that refuses a route of a peer, or nil.
func (d Desired) refuse(s Session, prefix netip.Prefix) *Refusal {
	return d.Refusals.Find(prefix, s.Outsider)
}

// Find returns the first rule that refuses a prefix, or nil; outsider as in Session.
func (list Refusals) Find(prefix netip.Prefix, outsider bool) *Refusal {
	for i := range list {
		r := &list[i]
		if r.Outsiders && !outsider || !r.Match.matches(prefix) && !among(r.Also, prefix) {
			continue
		}
		if !among(r.Except, prefix) {
			return r
		}
	}
	return nil
}

func among(sorted []netip.Prefix, p netip.Prefix) bool {
	_, found := slices.BinarySearchFunc(sorted, p, comparePrefix)
	return found
}

// Also lists the prefixes that rules refuse beside those that they match; sorted.
func (list Refusals) Also() (all []netip.Prefix) {
	for _, r := range list {
		all = append(all, r.Also...)
	}
	return sortedPrefixes(all)
}

// For returns the rules that can refuse routes of a session.
func (list Refusals) For(s Session) (mine Refusals) {
	six := s.Address.Unmap().Is6()
	for _, r := range list {
		if r.Match.CIDR.Addr().Is6() == six && (s.Outsider || !r.Outsiders) {
			mine = append(mine, r)
		}
	}
	return mine
}

// Martians returns the refusals that hold for every peer: routes whose destinations are all no unicast addresses of
// other hosts (RFC 1812 section 5.3.7, RFC 6890). Shorter prefixes around them, such as 0.0.0.0/1, are aggregates and
// not refused: more specific routes, such as the subnets of the host, come before them.
func Martians() Refusals {
	always := func(class RefusalClass, cidr, reason string) Refusal {
		return Refusal{Class: class, Match: inside(netip.MustParsePrefix(cidr)),
			Reason: "the prefix is inside " + cidr + ": " + reason}
	}
	return Refusals{
		always(RefusedUnspecified, "0.0.0.0/32",
			"the unspecified address is no destination (RFC 1122 section 3.2.1.3)"),
		always(RefusedThisNetwork, "0.0.0.0/8",
			`addresses of "this network" are no destinations (RFC 1122 section 3.2.1.3)`),
		always(RefusedLoopback, "127.0.0.0/8", "loopback addresses never leave a host (RFC 1122 section 3.2.1.3)"),
		always(RefusedLinkLocal, "169.254.0.0/16", "link-local addresses are not routed (RFC 3927 section 2.7)"),
		always(RefusedMulticast, "224.0.0.0/4", "multicast addresses have no unicast routes (RFC 5771)"),
		always(RefusedBroadcast, "255.255.255.255/32",
			"the limited broadcast address is not routed (RFC 919 section 7)"),
		always(RefusedReserved, "240.0.0.0/4", "the addresses are reserved (RFC 1112 section 4)"),
		always(RefusedReserved, "224.0.0.0/3", "it holds multicast and reserved addresses alone"),
		always(RefusedUnspecified, "::/128", "the unspecified address is no destination (RFC 4291 section 2.5.2)"),
		always(RefusedLoopback, "::1/128", "the loopback address never leaves a host (RFC 4291 section 2.5.3)"),
		always(RefusedUnspecified, "::/127", "it holds the unspecified and the loopback address alone"),
		always(RefusedMapped, "::ffff:0:0/96",
			"IPv4-mapped addresses are not routed (RFC 4291 section 2.5.5.2, RFC 6890)"),
		always(RefusedLinkLocal, "fe80::/10", "link-local addresses are not routed (RFC 4291 section 2.5.6)"),
		always(RefusedMulticast, "ff00::/8", "multicast addresses have no unicast routes (RFC 4291 section 2.7)"),
	}
}

// inside matches a prefix and all that it contains.
func inside(p netip.Prefix) PrefixMatch {
	return PrefixMatch{CIDR: p.Masked(), Min: p.Bits(), Max: p.Addr().BitLen()}
}

// RefuseSettings are the optional refusals; the zero value accepts all routes, as calico/node does.
type RefuseSettings struct {
	Default   bool          // default routes
	Longest   [families]int // routes with a longer prefix, IPv4 first; 0: none
	Connected bool          // prefixes inside subnets that this host is on
	Pools     bool          // prefixes inside IP pools that are no block of a node, from external peers
}

var familyBits = [families]int{32, 128}

// Annotations of BGPConfiguration about routes that are refused. Those of "node.NAME" come before those of "default".
const (
	annotationRefuseDefault   = annotationPrefix + "refuse-default-route"    // "true" or "false"
	annotationRefuseConnected = annotationPrefix + "refuse-connected-routes" // "true" or "false"
	annotationRefusePools     = annotationPrefix + "refuse-pool-routes"      // "true" or "false"
	annotationLongestV4       = annotationPrefix + "max-prefix-length-v4"    // 1 to 32; 0: any
	annotationLongestV6       = annotationPrefix + "max-prefix-length-v6"    // 1 to 128; 0: any
)

var refuseAnnotations = []string{annotationRefuseDefault, annotationRefuseConnected, annotationRefusePools,
	annotationLongestV4, annotationLongestV6}

// refuseSettings are the settings of this node: its annotations, then those of the cluster, then the daemon's flags.
func (c *cluster) refuseSettings(r model.Reader, me string, flags RefuseSettings) RefuseSettings {
	s := flags
	for _, name := range []string{"default", "node." + me} {
		config := model.Get[model.BGPConfiguration](r, model.Key{Kind: model.KindBGPConfiguration, Name: name})
		if config == nil {
			continue
		}
		object := "BGPConfiguration/" + name
		yes := func(name string, otherwise bool) bool {
			return c.wordAnnotation(object, config.Annotations, name, fmt.Sprint(otherwise), "true", "false") == "true"
		}
		s.Default = yes(annotationRefuseDefault, s.Default)
		s.Connected = yes(annotationRefuseConnected, s.Connected)
		s.Pools = yes(annotationRefusePools, s.Pools)
		for family, name := range []string{annotationLongestV4, annotationLongestV6} {
			s.Longest[family] = int(c.numberAnnotation(object, config.Annotations, name, uint32(familyBits[family]),
				uint32(s.Longest[family])))
		}
	}
	return s
}

// refusals lists all rules for this node, which announces own; connected are the subnets that the host is on.
func (c *cluster) refusals(r model.Reader, s RefuseSettings, own []Origin, connected []netip.Prefix) Refusals {
	list := Martians()
	for _, a := range c.addressesOfNode() {
		list = append(list, Refusal{Class: RefusedOwnAddress, Match: inside(hostPrefix(a)),
			Reason: "the prefix is the address of this node"})
	}
	list = append(list, blockRefusals(own)...)
	if s.Default {
		for _, all := range []string{"0.0.0.0/0", "::/0"} {
			list = append(list, Refusal{Class: RefusedDefault, Match: PrefixMatch{CIDR: netip.MustParsePrefix(all)},
				Reason: "default routes are refused here (" + annotationRefuseDefault + ")"})
		}
	}
	for family, all := range []string{"0.0.0.0/0", "::/0"} {
		if n := s.Longest[family]; n > 0 && n < familyBits[family] {
			list = append(list, Refusal{Class: RefusedLong,
				Match: PrefixMatch{CIDR: netip.MustParsePrefix(all), Min: n + 1, Max: familyBits[family]},
				Reason: fmt.Sprintf("the prefix is longer than /%d (%s)", n,
					[]string{annotationLongestV4, annotationLongestV6}[family])})
		}
	}
	if s.Connected {
		for _, p := range sortedPrefixes(slices.Clone(connected)) {
			list = append(list, Refusal{Class: RefusedConnected, Match: inside(p),
				Reason: fmt.Sprintf("the prefix is inside %s, a subnet that this host is on (%s)", p,
					annotationRefuseConnected)})
		}
	}
	if s.Pools {
		list = append(list, c.poolRefusals(r)...)
	}
	return list
}

// blockRefusals keep the blocks that this node announces from being learned: best path selection compares LOCAL_PREF
// first (RFC 4271 section 9.1.1), so that another's route could take the place of the node's own. Addresses inside the
// blocks may be announced by nodes that have borrowed them. There is a rule for each family, with blocks or without: a
// block that comes or goes concerns routes for itself alone.
func blockRefusals(own []Origin) Refusals {
	var blocks [families][]netip.Prefix
	for _, o := range own {
		if o.Blackhole && !o.Withheld {
			family := familyOf(o.Prefix.Addr())
			blocks[family] = append(blocks[family], o.Prefix)
		}
	}
	var list Refusals
	for family, all := range []string{"0.0.0.0/0", "::/0"} {
		nothing := PrefixMatch{CIDR: netip.MustParsePrefix(all), Min: 1}
		list = append(list, Refusal{Class: RefusedOwnPrefix, Match: nothing, Also: sortedPrefixes(blocks[family]),
			Reason: "this node originates the prefix itself; no other speaker may announce it"})
	}
	return list
}

// poolRefusals keep external peers from attracting traffic of workloads: inside a pool they may announce only routes
// that nodes announce themselves, their blocks as a whole. So a switch can still pass blocks on from node to node.
func (c *cluster) poolRefusals(r model.Reader) (list Refusals) {
	exported, hidden := c.pools(r)
	blocks := clusterBlocks(r)
	for _, pool := range sortedPrefixes(slices.Concat(exported, hidden)) {
		within := slices.DeleteFunc(slices.Clone(blocks), func(b netip.Prefix) bool { return !contains(pool, b) })
		list = append(list, Refusal{Class: RefusedPool, Match: inside(pool), Except: within, Outsiders: true,
			Reason: fmt.Sprintf("the prefix is inside pool %s and is no block of a node: external peers may not "+
				"announce it (%s)", pool, annotationRefusePools)})
	}
	return list
}

// clusterBlocks lists the blocks that nodes have, sorted. One whose claim is pending is not announced yet.
func clusterBlocks(r model.Reader) (list []netip.Prefix) {
	for k, v := range model.All[model.BlockAffinity](r, model.KindBlockAffinity) {
		if b, ok := ownership.BlockOf(k, v); ok {
			list = append(list, b.CIDR)
		}
	}
	return sortedPrefixes(list)
}

// addressesOfNode lists the addresses of this node itself and of its tunnel devices, sorted.
func (c *cluster) addressesOfNode() []netip.Addr {
	var list []netip.Addr
	for _, a := range c.me.addrs {
		if a.IsValid() {
			list = append(list, a)
		}
	}
	for _, t := range c.me.object.TunnelAddresses() {
		list = append(list, t.Address)
	}
	slices.SortFunc(list, func(a, b netip.Addr) int {
		return cmp.Or(cmp.Compare(a.BitLen(), b.BitLen()), a.Compare(b))
	})
	return slices.Compact(list)
}

// refusesByBlocks reports whether the blocks of other nodes decide about routes of peers.
func (d Desired) refusesByBlocks() bool {
	return slices.ContainsFunc(d.Refusals, func(r Refusal) bool { return r.Outsiders })
}
