package explain

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"

	"github.com/manxnet/manx/datastore/model"
)

// End is a source or a destination.
type End struct {
	Kind      string // "pod", "workload", "host" or "outside"
	Name      string // "default/web", the node's name, or empty
	Endpoint  string // the object behind it, "WorkloadEndpoint/default/..."
	Node      string
	Interface string // of the host
	Profiles  []string
	Address   netip.Addr
	addresses []netip.Addr
}

// String returns its name for people.
func (e End) String() string {
	switch e.Kind {
	case kindOutside:
		return e.Address.String() + " (outside the cluster)"
	case kindHost:
		return "node " + e.Name
	}
	return e.Kind + " " + e.Name
}

const (
	kindPod      = "pod"
	kindWorkload = "workload"
	kindHost     = "host"
	kindOutside  = "outside"
)

func (e End) isWorkload() bool { return e.Kind == kindPod || e.Kind == kindWorkload }

// findEnd resolves a name or an address: "pod/NAMESPACE/NAME", "node/NAME" and the like are exact; a bare name is
// searched among addresses, pods, endpoints and nodes, and must stand for one of them only.
func findEnd(r model.Reader, name string) (End, error) {
	if a, err := netip.ParseAddr(name); err == nil {
		return byAddress(r, a.Unmap()), nil
	}
	kind, rest, _ := strings.Cut(name, "/")
	want := func(string) bool { return true }
	switch strings.ToLower(kind) {
	case "pod", "pods", "po":
		want, name = func(k string) bool { return k == "pod" }, rest
	case "node", "nodes":
		want, name = func(k string) bool { return k == "node" }, rest
	case "workloadendpoint", "workloadendpoints", "wep", "weps":
		want, name = func(k string) bool { return k == "wep" }, rest
	case "hostendpoint", "hostendpoints", "hep", "heps":
		want, name = func(k string) bool { return k == "hep" }, rest
	}
	found := named(r, name, want)
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return End{}, fmt.Errorf("%q is no address, and there is no pod, WorkloadEndpoint, HostEndpoint or node of "+
			"that name: want an address, NAMESPACE/POD, or node/NAME", name)
	}
	var list []string
	for _, e := range found {
		text := e.String()
		if e.Endpoint != "" {
			text += " (" + e.Endpoint + ")"
		}
		list = append(list, text)
	}
	slices.Sort(list)
	return End{}, fmt.Errorf("%q is the name of %d ends: %s; want one of them with its namespace and kind, such as "+
		"pod/NAMESPACE/NAME or node/NAME", name, len(list), strings.Join(list, ", "))
}

func named(r model.Reader, name string, want func(string) bool) []End {
	var found []End
	is := func(namespace, x string) bool { return x != "" && (name == x || name == namespace+"/"+x) }
	for k, w := range model.AllWorkloads(r) {
		pod := is(k.Namespace, w.Pod) || is(k.Namespace, w.Workload) || is(k.Namespace, w.ContainerID)
		if pod && want("pod") || is(k.Namespace, k.Name) && want("wep") {
			found = append(found, workload(k, w))
		}
	}
	for k, h := range model.All[v3.HostEndpoint](r, model.KindHostEndpoint) {
		if k.Name == name && want("hep") {
			e := host(r, h.Spec.Node)
			e.Endpoint, e.Interface = k.String(), h.Spec.InterfaceName
			if e.Interface == model.AllInterfaces {
				e.Interface = ""
			}
			if ips := addresses(h.Spec.ExpectedIPs); len(ips) > 0 {
				e.addresses = ips
			}
			found = append(found, e)
		}
	}
	// a HostEndpoint often has the name of its node
	isHost := func(e End) bool { return e.Kind == kindHost && e.Node == name }
	if r.Get(model.ResourceKey(model.KindNode, name)) != nil && want("node") && !slices.ContainsFunc(found, isHost) {
		found = append(found, host(r, name))
	}
	return found
}

func byAddress(r model.Reader, a netip.Addr) End {
	for k, w := range model.AllWorkloads(r) {
		if e := workload(k, w); slices.Contains(e.addresses, a) {
			e.addresses = []netip.Addr{a}
			return e
		}
	}
	for k, n := range model.All[model.Node](r, model.KindNode) {
		if slices.Contains(nodeAddresses(n), a) {
			return End{Kind: kindHost, Name: k.Name, Node: k.Name, addresses: []netip.Addr{a}}
		}
	}
	for k, h := range model.All[v3.HostEndpoint](r, model.KindHostEndpoint) {
		if slices.Contains(addresses(h.Spec.ExpectedIPs), a) {
			return End{Kind: kindHost, Name: h.Spec.Node, Node: h.Spec.Node, Endpoint: k.String(),
				Interface: strings.TrimPrefix(h.Spec.InterfaceName, model.AllInterfaces), addresses: []netip.Addr{a}}
		}
	}
	return End{Kind: kindOutside, addresses: []netip.Addr{a}}
}

func workload(k model.Key, w *model.Workload) End {
	e := End{Kind: kindWorkload, Name: k.Namespace + "/" + k.Name, Endpoint: k.String(), Node: w.Node,
		Interface: w.Interface,
		Profiles:  w.Profiles, addresses: addressesOf(w)}
	if w.Pod != "" {
		e.Kind, e.Name = kindPod, k.Namespace+"/"+w.Pod
	}
	return e
}

func addressesOf(w *model.Workload) (list []netip.Addr) {
	for _, p := range w.Networks {
		list = append(list, p.Addr())
	}
	return list
}

func host(r model.Reader, node string) End {
	e := End{Kind: kindHost, Name: node, Node: node}
	if n := model.Get[model.Node](r, model.ResourceKey(model.KindNode, node)); n != nil {
		e.addresses = n.Addresses()
	}
	return e
}

// nodeAddresses returns the addresses that packets of the node itself may have, also in its tunnels.
func nodeAddresses(n *model.Node) []netip.Addr {
	list := n.Addresses()
	for _, t := range n.TunnelAddresses() {
		list = append(list, t.Address)
	}
	return list
}

func addresses(texts []string) []netip.Addr {
	var list []netip.Addr
	for _, t := range texts {
		t, _, _ = strings.Cut(t, "/")
		if a, err := netip.ParseAddr(t); err == nil {
			list = append(list, a.Unmap())
		}
	}
	return list
}

// sameFamily chooses one address of each end: IPv4 if both have one, unless IPv6 is wanted.
func sameFamily(a, b *End, six bool) error {
	for _, want6 := range []bool{six, !six} {
		i := slices.IndexFunc(a.addresses, func(x netip.Addr) bool { return x.Is6() == want6 })
		j := slices.IndexFunc(b.addresses, func(x netip.Addr) bool { return x.Is6() == want6 })
		if i >= 0 && j >= 0 {
			a.Address, b.Address = a.addresses[i], b.addresses[j]
			return nil
		}
	}
	for _, e := range []*End{a, b} {
		if len(e.addresses) == 0 {
			return fmt.Errorf("%s has no address yet", e)
		}
	}
	a.Address, b.Address = a.addresses[0], b.addresses[0]
	return fmt.Errorf("%s has only %s and %s only %s: no packet goes from one to the other", a, family(a.Address), b,
		family(b.Address))
}

func family(a netip.Addr) string {
	if a.Is4() {
		return "IPv4"
	}
	return "IPv6"
}
