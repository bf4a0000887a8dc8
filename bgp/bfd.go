package bgp

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Annotations that have the path to a peer watched (RFC 5880), on a BGPPeer for its sessions and on the default
// BGPConfiguration for those of the mesh.
const (
	annotationBFD           = annotationPrefix + "bfd"            // "true" or "false"
	annotationBFDInterval   = annotationPrefix + "bfd-interval"   // both of the next two, as a duration
	annotationBFDTransmit   = annotationPrefix + "bfd-transmit"   // desired minimum interval of sending
	annotationBFDReceive    = annotationPrefix + "bfd-receive"    // required minimum interval of receiving
	annotationBFDMultiplier = annotationPrefix + "bfd-multiplier" // packets that may be missing
	annotationBFDMultihop   = annotationPrefix + "bfd-multihop"   // "auto", "true" or "false"
	annotationBFDMinTTL     = annotationPrefix + "bfd-min-ttl"    // least TTL of the peer's packets on multihop
)

// bfdAnnotations are all of them.
var bfdAnnotations = []string{annotationBFD, annotationBFDInterval, annotationBFDTransmit, annotationBFDReceive,
	annotationBFDMultiplier, annotationBFDMultihop, annotationBFDMinTTL}

// Defaults for missing annotations, and their limits.
const (
	bfdInterval    = 300 * time.Millisecond
	bfdMinInterval = 10 * time.Millisecond
	bfdMaxInterval = time.Minute
	bfdMultiplier  = 3
)

// bfdSetting is the content of the annotations of one object.
type bfdSetting struct {
	BFD
	auto bool // whether it is multihop follows from the addresses
}

// bfd parses annotations. An unreadable one gets a notice, and the default counts.
func (c *cluster) bfd(object string, annotations map[string]string) bfdSetting {
	s := bfdSetting{auto: true, BFD: BFD{Multiplier: bfdMultiplier}}
	s.Enabled = c.wordAnnotation(object, annotations, annotationBFD, "false", "true", "false") == "true"
	interval := c.durationAnnotation(object, annotations, annotationBFDInterval, bfdInterval)
	s.Transmit = c.durationAnnotation(object, annotations, annotationBFDTransmit, interval)
	s.Receive = c.durationAnnotation(object, annotations, annotationBFDReceive, interval)
	s.Multiplier = c.octetAnnotation(object, annotations, annotationBFDMultiplier, bfdMultiplier)
	s.MinTTL = c.octetAnnotation(object, annotations, annotationBFDMinTTL, 0)
	multihop := c.wordAnnotation(object, annotations, annotationBFDMultihop, "auto", "auto", "true", "false")
	s.auto, s.Multihop = multihop == "auto", multihop == "true"
	return s
}

// octetAnnotation reads a number from 1 to 255; otherwise counts if it is absent or cannot be read.
func (c *cluster) octetAnnotation(object string, annotations map[string]string, name string, otherwise uint8) uint8 {
	text, ok := annotations[name]
	if !ok {
		return otherwise
	}
	n, err := strconv.ParseUint(text, 10, 8)
	if err != nil || n == 0 {
		c.note(object, fmt.Sprintf("annotation %s = %q is ignored: want a number from 1 to 255", name, text))
		return otherwise
	}
	return uint8(n)
}

func (c *cluster) wordAnnotation(
	object string, annotations map[string]string, name, otherwise string, words ...string,
) string {
	text, ok := annotations[name]
	if !ok {
		return otherwise
	}
	for _, w := range words {
		if text == w {
			return w
		}
	}
	c.note(object, fmt.Sprintf("annotation %s = %q is ignored: want %s", name, text, strings.Join(words, ", ")))
	return otherwise
}

func (c *cluster) durationAnnotation(
	object string, annotations map[string]string, name string, otherwise time.Duration,
) time.Duration {
	text, ok := annotations[name]
	if !ok {
		return otherwise
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < bfdMinInterval || d > bfdMaxInterval {
		c.note(object, fmt.Sprintf("annotation %s = %q is ignored: want a duration from %s to %s, such as 300ms", name,
			text, bfdMinInterval, bfdMaxInterval))
		return otherwise
	}
	return d
}

// watch returns the setting for the session with a peer. It is multihop (RFC 5883) unless the peer is on a subnet of
// this host. With a node both have to be on the subnet of the other's Node, so that the two ends come to the same
// result.
func (c *cluster) watch(setting bfdSetting, peer netip.Addr) BFD {
	if !setting.Enabled {
		return BFD{}
	}
	b := setting.BFD
	if setting.auto {
		b.Multihop = !c.neighbours(peer)
	}
	return b
}

// neighbours reports whether addr is on our subnet, and we are on its if it is a node's; a router may be on any subnet
// of this host, such as that of a second uplink.
func (c *cluster) neighbours(addr netip.Addr) bool {
	f := familyOf(addr)
	on := func(subnet netip.Prefix) bool { return subnet.Contains(addr) }
	if peer := c.byAddr[addr]; peer != nil {
		return on(c.me.subnets[f]) && peer.subnets[f].Contains(c.me.addrs[f])
	}
	return on(c.me.subnets[f]) || slices.ContainsFunc(c.connected, on)
}
