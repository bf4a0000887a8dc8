package hoststate

import (
	"fmt"
	"regexp"
	"slices"

	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/overlay"
	"github.com/manxnet/manx/datastore/model"
)

// Overlays returns the devices of the overlays that this host has.
func (h *Host) Overlays() []overlay.Device {
	if h.PolicyOnly {
		return nil
	}
	return overlay.Devices(&h.Felix, h.PoolTable(), h.Own)
}

// EncryptsHosts reports whether packets of a family to the nodes themselves are to be encrypted.
func (h *Host) EncryptsHosts(f model.Family) bool {
	return !h.PolicyOnly && slices.ContainsFunc(overlay.Encryptions(&h.Felix), func(e overlay.Encryption) bool {
		return e.Family == f && e.Hosts
	})
}

// defaultUplinks matches the names of interfaces whose MTU counts while no route leads to another node, as the default
// of Calico's mtuIfacePattern.
var defaultUplinks = regexp.MustCompile(`^((en|wl|ww|sl|ib)[Pcopsvx].*|(eth|wlan|wwan).*)`)

const fallbackMTU = 1460 // when no interface looks like an uplink

// Underlay is the network that carries packets between the nodes.
type Underlay struct {
	// Unread is set until the routes of the host have been read.
	Unread bool
	// MTU is the size in bytes of the largest packet that the interfaces and routes towards all other nodes take, or
	// those to the network of this one where there is no other; 0: no route leads there.
	MTU int
}

// UplinkMTU is the size of the largest packet that this host sends to every other node, in bytes; 0: it is not known
// yet. Where FelixConfiguration has mtuIfacePattern, it is the smallest MTU of the interfaces that are up and have such
// a name, as in Calico. Else it is that of the underlay, or of the interfaces that look like uplinks if no route leads
// to the nodes. source is the begin of a sentence that ends with the size, and says where it comes from.
func (h *Host) UplinkMTU(links map[string]kernel.Link) (mtu int, source string) {
	if text := h.Felix.MTUIfacePattern; text != "" {
		if re, err := regexp.Compile(text); err == nil {
			return smallestMTU(links, re, "that match mtuIfacePattern")
		}
	}
	switch {
	case h.Underlay.MTU > 0:
		return h.Underlay.MTU, "the links and routes to other nodes take"
	case h.Underlay.Unread:
		return 0, ""
	}
	return smallestMTU(links, defaultUplinks, "that look like uplinks")
}

// smallestMTU is that of the interfaces that are up and whose name matches, with the source of UplinkMTU.
func smallestMTU(links map[string]kernel.Link, pattern *regexp.Regexp, which string) (mtu int, source string) {
	for _, l := range links {
		if l.Up && pattern.MatchString(l.Name) && (mtu == 0 || l.MTU < mtu) {
			mtu = l.MTU
		}
	}
	if mtu == 0 {
		return fallbackMTU, fmt.Sprintf("no interfaces %s are up, so that the MTU of the host counts as", which)
	}
	return mtu, fmt.Sprintf("the interfaces %s take", which)
}
