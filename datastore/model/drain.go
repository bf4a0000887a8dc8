package model

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// Annotations of a Node for its drain and return. People (or manxctl node drain) write the request, the daemon of that
// node the state that it has reached. So both survive restarts and are visible everywhere.
const (
	// AnnotationDrain requests the drain; its value is the time of the request, as RFC 3339.
	AnnotationDrain = "manx.io/drain"
	// AnnotationDrainTimeout is the time that traffic has to leave before routes are withdrawn, as a Go duration.
	AnnotationDrainTimeout = "manx.io/drain-timeout"
	// AnnotationDrained is the state: the time since which the routes are withdrawn, as RFC 3339.
	AnnotationDrained = "manx.io/drained"
	// AnnotationDrainPeers requests the drain of BGP peers: their addresses, separated by commas.
	AnnotationDrainPeers = "manx.io/drain-peers"
	// AnnotationDrainedPeers is the state: the addresses of the peers that other routers have had time to avoid.
	AnnotationDrainedPeers = "manx.io/drained-peers"
)

// AnnotationBGPOff of a Node is the reason why its daemon speaks no BGP. The daemon writes it, and removes it when it
// speaks BGP. Without BGP there are no routes that a drain could withdraw.
const AnnotationBGPOff = "manx.io/bgp-off"

// DefaultDrainTimeout is the default of AnnotationDrainTimeout.
const DefaultDrainTimeout = time.Minute

// DrainPhase is the phase of a node's drain.
type DrainPhase string

// The phases of a drain and return, in their order.
const (
	InService DrainPhase = ""
	Draining  DrainPhase = "draining"  // routes are advertised with the lowest preference
	Drained   DrainPhase = "drained"   // routes are withdrawn
	Returning DrainPhase = "returning" // routes are advertised again, with the lowest preference until others have them
)

// DrainPhase returns the phase, which follows from request and state.
func (n *Node) DrainPhase() DrainPhase {
	_, requested := n.Annotations[AnnotationDrain]
	_, done := n.Annotations[AnnotationDrained]
	switch {
	case requested && done:
		return Drained
	case requested:
		return Draining
	case done:
		return Returning
	}
	return InService
}

// DrainTimeout returns the time that traffic has to leave; the default and an error if the annotation is malformed.
func (n *Node) DrainTimeout() (time.Duration, error) {
	text, ok := n.Annotations[AnnotationDrainTimeout]
	if !ok {
		return DefaultDrainTimeout, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 {
		return DefaultDrainTimeout, fmt.Errorf("annotation %s = %q is ignored: want a duration such as 90s",
			AnnotationDrainTimeout, text)
	}
	return d, nil
}

// DrainPeers returns the addresses of the BGP peers whose drain is requested, sorted; an error names the first entry of
// the annotation that is no address.
func (n *Node) DrainPeers() ([]netip.Addr, error) { return addresses(n, AnnotationDrainPeers) }

// DrainedPeers returns the addresses of the drained BGP peers that other routers have had time to avoid, sorted.
func (n *Node) DrainedPeers() []netip.Addr {
	list, _ := addresses(n, AnnotationDrainedPeers)
	return list
}

// PeerDrainPhase returns the phase of the drain of a BGP peer; a drained one keeps its routes, as the last choice.
func (n *Node) PeerDrainPhase(peer netip.Addr) DrainPhase {
	requested, _ := n.DrainPeers()
	switch {
	case !slices.Contains(requested, peer):
		return InService
	case slices.Contains(n.DrainedPeers(), peer):
		return Drained
	}
	return Draining
}

func addresses(n *Node, annotation string) (list []netip.Addr, err error) {
	for text := range strings.SplitSeq(n.Annotations[annotation], ",") {
		if text = strings.TrimSpace(text); text == "" {
			continue
		}
		a, wrong := netip.ParseAddr(text)
		if wrong != nil {
			if err == nil {
				err = fmt.Errorf("annotation %s: %.40q is ignored: want the address of a BGP peer", annotation, text)
			}
			continue
		}
		list = append(list, a.Unmap())
	}
	slices.SortFunc(list, netip.Addr.Compare)
	return slices.Compact(list), err
}

// AddressList is the value of AnnotationDrainPeers or AnnotationDrainedPeers for some peers.
func AddressList(peers []netip.Addr) string {
	peers = slices.Clone(peers)
	slices.SortFunc(peers, netip.Addr.Compare)
	texts := make([]string, 0, len(peers))
	for _, a := range slices.Compact(peers) {
		texts = append(texts, a.String())
	}
	return strings.Join(texts, ",")
}
