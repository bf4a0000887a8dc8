package sysctl

import (
	"github.com/manxnet/manx/dataplane/hoststate"
	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/datastore/model"
)

// key names a variable.
type key struct {
	// Interface is the one that the variable belongs to, empty if it is the host's.
	Interface string
	Name      string
}

func (k key) String() string { return "sysctl " + k.Name }

// Link implements driver.Objects' key.
func (k key) Link() string { return k.Interface }

// The variables that make the host a router.
var (
	forwarding4 = key{Name: "net/ipv4/ip_forward"}
	forwarding6 = key{Name: "net/ipv6/conf/all/forwarding"}
)

// rank orders variables by their weight for people.
func (k key) rank() int {
	if k == forwarding4 || k == forwarding6 {
		return 0
	}
	return 1
}

// endpoint is a workload's interface on this node.
type endpoint struct {
	Interface string
	V4, V6    bool
	// Spoof lets the workload send from addresses that are not its own.
	Spoof bool
}

// desired returns the variables of the host and of the interfaces that exist; kernel6: the kernel has IPv6.
func desired(h *hoststate.Host, links map[string]kernel.Link, kernel6 bool) map[key]string {
	want := map[key]string{}
	for _, d := range h.Overlays() {
		if _, exists := links[d.Name]; exists {
			// Loose: with CrossSubnet a packet may come by the tunnel from a source that is reached without it.
			want[key{d.Name, "net/ipv4/conf/" + d.Name + "/rp_filter"}] = "2"
		}
	}
	if h.EncryptsHosts(model.IPv4) {
		want[key{Name: "net/ipv4/conf/all/src_valid_mark"}] = "1" // else rp_filter looks up the tunnel
	}
	ends := endpoints(h)
	if (!h.PolicyOnly || len(ends) > 0) && h.Felix.IPForwarding != "Disabled" {
		want[forwarding4] = "1"
		if kernel6 && usesIPv6(h, ends) {
			want[forwarding6] = "1"
		}
	}
	seen := map[string]bool{} // of several endpoints, the first has the interface, as in policy
	for _, e := range ends {
		if _, exists := links[e.Interface]; exists && !seen[e.Interface] {
			e.put(want, kernel6)
			seen[e.Interface] = true
		}
	}
	return want
}

func endpoints(h *hoststate.Host) (list []endpoint) {
	for _, e := range h.Usable() {
		if !h.Connects(e.Interface) {
			continue
		}
		end := endpoint{Interface: e.Interface, Spoof: len(e.AllowSpoofedSourcePrefixes) > 0}
		for _, p := range e.Networks {
			end.V4, end.V6 = end.V4 || p.Addr().Is4(), end.V6 || p.Addr().Is6()
		}
		list = append(list, end)
	}
	return list
}

// usesIPv6 reports whether this node has an IPv6 address, an IPv6 block or a workload with IPv6. A pool alone is no
// use: a default one is made wherever the kernel has IPv6.
func usesIPv6(h *hoststate.Host, ends []endpoint) bool {
	if h.BGPSpec().Address(model.IPv6).IsValid() {
		return true
	}
	for block := range h.Blocks {
		if block.Addr().Is6() {
			return true
		}
	}
	for _, e := range ends {
		if e.V6 {
			return true
		}
	}
	return false
}

// put makes the host end of a workload's interface a router that answers for the workload's gateway.
func (e endpoint) put(want map[key]string, kernel6 bool) {
	add := func(path, variable, value string) {
		want[key{e.Interface, "net/" + path + "/" + e.Interface + "/" + variable}] = value
	}
	if e.V4 {
		filter := "1"
		if e.Spoof {
			filter = "0"
		}
		add("ipv4/conf", "route_localnet", "1")
		add("ipv4/neigh", "proxy_delay", "0")
		add("ipv4/conf", "proxy_arp", "1")
		add("ipv4/conf", "forwarding", "1")
		add("ipv4/conf", "rp_filter", filter)
	}
	if kernel6 {
		add("ipv6/conf", "accept_ra", "0")
		if e.V6 {
			add("ipv6/conf", "disable_ipv6", "0")
			add("ipv6/conf", "proxy_ndp", "1")
			add("ipv6/conf", "forwarding", "1")
		}
	}
}
