package cryptokey

import (
	"fmt"
	"net/netip"

	"github.com/manxnet/manx/dataplane/kernel/wireguard"
)

// Input is what a Plan follows from, for one family.
type Input struct {
	Node string // this one
	// OwnKey is that of the own device, zero if it has none yet.
	OwnKey wireguard.Key
	Nodes  *Table
	// Places has the nodes of prefixes, by IPAM's blocks.
	Places map[netip.Prefix]string
	// Local are the addresses of workloads of this host.
	Local []netip.Prefix
	// InPool reports whether a prefix is in a pool.
	InPool func(netip.Prefix) bool
	// Refuse returns why a prefix is not routed to another node, by its name; empty if it may be.
	Refuse func(p netip.Prefix, node string) string
	// EncryptHosts is set if packets to the nodes themselves are to be encrypted, too. RefuseHost returns why those to
	// the address of a node are not, by its name; empty if they may be.
	EncryptHosts bool
	RefuseHost   func(p netip.Prefix, node string) string
}

// Way is where packets to a prefix go.
type Way struct {
	Node string // that has the prefix
	// Peer is the key for the packets, zero if they are not encrypted, as those to workloads of this host.
	Peer wireguard.Key
}

// Plan has the peers of this node.
type Plan struct {
	Peers map[string]Node // by name
	// Plain has, for each other node that is no peer, the reason.
	Plain map[string]string
	Ways  map[netip.Prefix]Way
	// Hosts are the own addresses of the peers, from which they may send encrypted packets: they answer workloads that
	// reach them unencrypted.
	Hosts map[netip.Prefix]wireguard.Key
	// ToHosts has the address of each peer to which packets may be encrypted, by name, and PlainHosts the reason for
	// each other one. Both are empty without Input.EncryptHosts.
	ToHosts    map[string]netip.Prefix
	PlainHosts map[string]string
	// Refused has the prefixes that have no way, with the reason.
	Refused map[netip.Prefix]string
}

// Decide returns the plan. What belongs to this host wins over all that other nodes claim.
func Decide(in Input) Plan {
	p := Plan{Peers: map[string]Node{}, Plain: map[string]string{}, Ways: map[netip.Prefix]Way{},
		Hosts: map[netip.Prefix]wireguard.Key{}, Refused: map[netip.Prefix]string{},
		ToHosts: map[string]netip.Prefix{}, PlainHosts: map[string]string{}}
	for name := range in.Nodes.nodes {
		if name == in.Node {
			continue
		}
		switch n, why := in.Nodes.of(name); {
		case why != "":
			p.Plain[name] = why
		case n.Key == in.OwnKey:
			p.Plain[name] = fmt.Sprintf("%s publishes the key of this host, %s", name, in.Node)
		default:
			p.Peers[name] = n
		}
	}
	for prefix, name := range in.Places {
		if name == in.Node {
			p.Ways[prefix] = Way{Node: name}
			continue
		}
		if why := in.refuse(prefix, name); why != "" {
			p.Refused[prefix] = why
			continue
		}
		p.Ways[prefix] = Way{Node: name, Peer: p.Peers[name].Key}
	}
	for _, a := range in.Local {
		if way, ok := p.around(a); !ok || way.Node != in.Node {
			p.Ways[a] = Way{Node: in.Node}
		}
	}
	holders := map[netip.Addr]string{} // of the peers with one address, the oldest
	for name, n := range p.Peers {
		if other, has := holders[n.Address]; !has || in.Nodes.compareAge(name, other) < 0 {
			holders[n.Address] = name
		}
	}
	for name, n := range p.Peers {
		p.decideHost(in, name, n, holders[n.Address] == name)
	}
	return p
}

// decideHost decides about the own address of a peer. It is the peer's if no other node claims it and no pod has it.
// Packets from it do no harm to a host that needs a server or a router there; packets to it are another matter: whoever
// writes a Node could draw those to a server.
func (p *Plan) decideHost(in Input, name string, n Node, first bool) {
	h := netip.PrefixFrom(n.Address, n.Address.BitLen())
	own := in.Nodes.nodes[in.Node].Address
	_, covered := p.around(h)
	why := ""
	switch {
	case n.Address == own:
		why = fmt.Sprintf("%s is the address of this host", n.Address)
	case !first:
		why = fmt.Sprintf("an older node has the address %s, too", n.Address)
	case covered:
		why = fmt.Sprintf("%s is in a block of IPAM, or a pod of this host has it", n.Address)
	case !in.EncryptHosts:
		if in.Refuse(h, name) == "" {
			p.Hosts[h] = n.Key
		}
		return
	default:
		p.Hosts[h] = n.Key
		if why = in.RefuseHost(h, name); why == "" && !own.IsValid() {
			why = fmt.Sprintf("the Node of this host, %s, has no such address", in.Node)
		}
		if in.Nodes.hosts[n.Address] > 1 { // who has the key may send from it, and gets nothing for the other
			why = fmt.Sprintf("another node has the address %s, too", n.Address)
		}
	}
	switch {
	case !in.EncryptHosts:
	case why != "":
		p.PlainHosts[name] = why
	default:
		p.ToHosts[name] = h
	}
}

// refuse returns why a prefix is not another node's: packets to a host itself never go through the tunnel that needs
// them.
func (in Input) refuse(p netip.Prefix, node string) string {
	if own := in.Nodes.nodes[in.Node].Address; own.IsValid() && p.Contains(own) {
		return fmt.Sprintf("%s is the address of this host", own)
	}
	if p.IsSingleIP() && in.Nodes.isHost(p.Addr()) {
		return fmt.Sprintf("%s is the address of a node", p.Addr())
	}
	if !in.InPool(p) {
		return "it is in no IP pool"
	}
	return in.Refuse(p, node)
}

// Covered returns a function that reports whether a shorter prefix around one has a way.
func (p Plan) Covered() func(netip.Prefix) bool {
	lengths := map[int]bool{} // there are few
	for way := range p.Ways {
		lengths[way.Bits()] = true
	}
	return func(a netip.Prefix) bool {
		for bits := range lengths {
			if bits < a.Bits() {
				if _, ok := p.Ways[netip.PrefixFrom(a.Addr(), bits).Masked()]; ok {
					return true
				}
			}
		}
		return false
	}
}

// around returns the way of the longest prefix with an address.
func (p Plan) around(a netip.Prefix) (Way, bool) {
	for bits := a.Bits(); bits >= 0; bits-- {
		if way, ok := p.Ways[netip.PrefixFrom(a.Addr(), bits).Masked()]; ok {
			return way, true
		}
	}
	return Way{}, false
}
