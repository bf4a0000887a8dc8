package hoststate

import (
	"regexp"

	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/overlay"
)

// Overlays returns the devices of the overlays that this host has.
func (h *Host) Overlays() []overlay.Device {
	if h.PolicyOnly {
		return nil
	}
	return overlay.Devices(&h.Felix, h.PoolTable(), h.Own)
}

// defaultUplinks matches the names of interfaces whose MTU counts, as FelixConfiguration's mtuIfacePattern.
var defaultUplinks = regexp.MustCompile(`^((en|wl|ww|sl|ib)[Pcopsvx].*|(eth|wlan|wwan).*)`)

const fallbackMTU = 1460 // when no interface looks like an uplink

// UplinkMTU is the smallest MTU of the interfaces that lead to other hosts: those that are up and whose name matches
// FelixConfiguration's mtuIfacePattern, or the default one if that is empty or not valid.
func (h *Host) UplinkMTU(links map[string]kernel.Link) int {
	pattern := defaultUplinks
	if text := h.Felix.MTUIfacePattern; text != "" {
		if re, err := regexp.Compile(text); err == nil {
			pattern = re
		}
	}
	mtu := 0
	for _, l := range links {
		if l.Up && pattern.MatchString(l.Name) && (mtu == 0 || l.MTU < mtu) {
			mtu = l.MTU
		}
	}
	if mtu == 0 {
		return fallbackMTU
	}
	return mtu
}
