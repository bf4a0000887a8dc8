// Package hostendpoints creates HostEndpoints for Calico's Nodes, as configured in KubeControllersConfiguration.
package hostendpoints

import (
	"crypto/sha256"
	"encoding/base64"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/manxnet/manx/controllers/change"
	"github.com/manxnet/manx/controllers/loop"
	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/datastore/selector"
)

// The label of automatic HostEndpoints. The controller leaves those without it alone.
const (
	labelCreatedBy = "projectcalico.org/created-by"
	createdBy      = "calico-kube-controllers"
)

const (
	suffix         = "auto-hep"
	defaultProfile = "projectcalico-default-allow"
	longestName    = 253
)

// HostEndpoints is the controller. Its unit is Calico's Node.
type HostEndpoints struct {
	enabled, byDefault bool
	templates          []template
	// of are the automatic HostEndpoints of each node.
	of map[string]map[model.Key]bool
}

// template is a parsed HostEndpointTemplate.
type template struct {
	model.HostEndpointTemplate
	networks []netip.Prefix
	pattern  *regexp.Regexp // nil: one HostEndpoint for all interfaces
	nodes    *selector.Selector
}

// New returns the controller. c is a valid configuration, or nil. Without enabled the controller deletes its
// HostEndpoints.
func New(c *model.AutoHostEndpoints) (*HostEndpoints, error) {
	h := &HostEndpoints{of: map[string]map[model.Key]bool{}}
	if c == nil || c.AutoCreate != "Enabled" {
		return h, nil
	}
	h.enabled, h.byDefault = true, c.CreateDefaultHostEndpoint != "Disabled"
	for _, t := range c.Templates {
		read := template{HostEndpointTemplate: t}
		for _, n := range t.InterfaceCIDRs {
			p, err := netip.ParsePrefix(n)
			if err != nil {
				return nil, err
			}
			read.networks = append(read.networks, p.Masked())
		}
		var err error
		if t.InterfacePattern != "" {
			if read.pattern, err = regexp.Compile(t.InterfacePattern); err != nil {
				return nil, err
			}
		}
		if read.nodes, err = selector.Parse(t.NodeSelector); err != nil {
			return nil, err
		}
		h.templates = append(h.templates, read)
	}
	return h, nil
}

// Name implements loop.Controller.
func (*HostEndpoints) Name() string { return "node-hostendpoints" }

// Kinds implements loop.Controller.
func (*HostEndpoints) Kinds() (store, source []model.Kind) {
	return []model.Kind{model.KindNode, model.KindHostEndpoint}, nil
}

// Touched implements loop.Controller.
func (h *HostEndpoints) Touched(ch datastore.Change, _ bool) []model.Key {
	if ch.Key.Kind == model.KindNode {
		return []model.Key{ch.Key}
	}
	var units []model.Key
	if was, ok := automatic(ch.Old); ok {
		delete(h.of[was.Spec.Node], ch.Key)
		units = append(units, model.ResourceKey(model.KindNode, was.Spec.Node))
	}
	if now, ok := automatic(ch.New); ok {
		if h.of[now.Spec.Node] == nil {
			h.of[now.Spec.Node] = map[model.Key]bool{}
		}
		h.of[now.Spec.Node][ch.Key] = true
		units = append(units, model.ResourceKey(model.KindNode, now.Spec.Node))
	}
	return units
}

// automatic returns o as a HostEndpoint of this controller.
func automatic(o *model.Object) (*v3.HostEndpoint, bool) {
	if o == nil {
		return nil, false
	}
	e, ok := o.Value.(*v3.HostEndpoint)
	return e, ok && e.Labels[labelCreatedBy] == createdBy
}

// All implements loop.Controller.
func (h *HostEndpoints) All(s loop.State) (keys []model.Key) {
	for o := range s.Store.All(model.KindNode) {
		keys = append(keys, o.Key)
	}
	for node := range h.of {
		keys = append(keys, model.ResourceKey(model.KindNode, node))
	}
	return keys
}

// Decide implements loop.Controller.
func (h *HostEndpoints) Decide(s loop.State, key model.Key) []change.Change {
	var list []change.Change
	want := map[model.Key]bool{}
	n := model.Get[model.Node](s.Store, key)
	if n != nil && h.enabled {
		for _, e := range h.wanted(n) {
			o := model.NewObject(model.ResourceKey(model.KindHostEndpoint, e.Name), e)
			want[o.Key] = true
			if c, differs := compare(s.Store.Get(o.Key), o); differs {
				list = append(list, c)
			}
		}
	}
	for _, k := range slices.SortedFunc(maps.Keys(h.of[key.Name]), func(a, b model.Key) int {
		return strings.Compare(a.Name, b.Name)
	}) {
		if have := s.Store.Get(k); have != nil && !want[k] {
			list = append(list, change.Change{Old: have, Reason: "no Node or template requires it"})
		}
	}
	return list
}

// compare returns the write that turns the stored HostEndpoint have, nil for none, into want. It returns false if they
// are equal, or if have is not this controller's and stays unchanged.
func compare(have, want *model.Object) (change.Change, bool) {
	if have == nil {
		return change.Change{New: want, Reason: "a Node has such interfaces"}, true
	}
	is, ok := automatic(have)
	w := want.Value.(*v3.HostEndpoint)
	if !ok || maps.Equal(is.Labels, w.Labels) && maps.Equal(is.Annotations, w.Annotations) &&
		slices.Equal(is.Spec.ExpectedIPs, w.Spec.ExpectedIPs) && is.Spec.InterfaceName == w.Spec.InterfaceName &&
		is.Spec.Node == w.Spec.Node {
		return change.Change{}, false
	}
	next := have.Clone()
	e := next.Value.(*v3.HostEndpoint)
	e.Labels, e.Annotations = w.Labels, w.Annotations
	e.Spec.Node, e.Spec.InterfaceName, e.Spec.ExpectedIPs = w.Spec.Node, w.Spec.InterfaceName, w.Spec.ExpectedIPs
	return change.Change{Old: have, New: next, Reason: "its Node or template has changed"}, true
}

// wanted returns the HostEndpoints of a node.
func (h *HostEndpoints) wanted(n *model.Node) []*v3.HostEndpoint {
	var list []*v3.HostEndpoint
	addresses := addressesOf(n)
	if h.byDefault {
		list = append(list, endpoint(n, nil, nameOf(n.Name), "*", addresses))
	}
	for i := range h.templates {
		t := &h.templates[i]
		if !t.nodes.Matches(n.Labels) {
			continue
		}
		in := within(addresses, t.networks)
		switch {
		case t.pattern != nil:
			for _, x := range n.Spec.Interfaces {
				if t.pattern.MatchString(x.Name) {
					list = append(list, endpoint(n, t, nameOf(n.Name, t.GenerateName, x.Name), x.Name,
						union(in, x.Addresses)))
				}
			}
		case len(in) > 0: // without an interface name, only addresses identify the interface
			list = append(list, endpoint(n, t, nameOf(n.Name, t.GenerateName), "", in))
		}
	}
	return list
}

func endpoint(n *model.Node, t *template, name, interfaceName string, addresses []string) *v3.HostEndpoint {
	labels := map[string]string{}
	maps.Copy(labels, n.Labels)
	e := &v3.HostEndpoint{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
	if t != nil {
		maps.Copy(labels, t.Labels)
		e.Annotations = maps.Clone(t.Annotations)
	}
	labels[labelCreatedBy] = createdBy
	e.Spec = v3.HostEndpointSpec{Node: n.Name, InterfaceName: interfaceName, ExpectedIPs: addresses,
		Profiles: []string{defaultProfile}}
	return e
}

// nameOf joins the parts of a name; it replaces a name that is too long by its hash.
func nameOf(parts ...string) string {
	name := strings.Join(append(parts, suffix), "-")
	if len(name) <= longestName {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	hash := base64.RawURLEncoding.EncodeToString(sum[:])
	return strings.ToLower(strings.NewReplacer("-", "", "_", "", ".", "").Replace(hash)) + "-" + suffix
}

// addressesOf returns all known addresses of a node, each once: of BGP, tunnels, InternalIP, interfaces.
func addressesOf(n *model.Node) []string {
	var list []string
	if b := n.Spec.BGP; b != nil {
		for _, f := range []model.Family{model.IPv4, model.IPv6} {
			if a := b.Address(f).Addr(); a.IsValid() {
				list = append(list, a.String())
			}
		}
		list = append(list, b.IPv4IPIPTunnelAddr)
	}
	list = append(list, n.Spec.IPv4VXLANTunnelAddr, n.Spec.IPv6VXLANTunnelAddr)
	if w := n.Spec.Wireguard; w != nil {
		list = append(list, w.InterfaceIPv4Address, w.InterfaceIPv6Address)
	}
	for _, a := range n.Spec.Addresses {
		if a.Type == "InternalIP" {
			list = append(list, a.Address)
		}
	}
	for _, x := range n.Spec.Interfaces {
		list = append(list, x.Addresses...)
	}
	return union(nil, slices.DeleteFunc(list, func(a string) bool {
		_, err := netip.ParseAddr(withoutLength(a))
		return err != nil
	}))
}

// withoutLength returns an address without its prefix length, in canonical form.
func withoutLength(text string) string {
	bare, _, _ := strings.Cut(text, "/")
	if a, err := netip.ParseAddr(bare); err == nil {
		return a.String()
	}
	return bare
}

func union(list, more []string) []string {
	list = slices.Clone(list)
	for _, a := range more {
		if !slices.Contains(list, a) {
			list = append(list, a)
		}
	}
	return list
}

// within returns the addresses that lie in one of the networks.
func within(addresses []string, networks []netip.Prefix) []string {
	var list []string
	for _, text := range addresses {
		a, err := netip.ParseAddr(withoutLength(text))
		if err == nil && slices.ContainsFunc(networks, func(p netip.Prefix) bool { return p.Contains(a) }) {
			list = append(list, a.String())
		}
	}
	return list
}
