package policy

import (
	"net/netip"
	"slices"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	"k8s.io/utils/third_party/forked/golang/btree"

	"github.com/manxnet/manx/dataplane/ruleset"
	"github.com/manxnet/manx/datastore/model"
)

// item is something that selectors in rules can name: an endpoint anywhere in the cluster, or a network set.
type item struct {
	key   model.Key
	nets  []netip.Prefix       // sorted
	ports []model.EndpointPort // as in the datastore's tables, where many endpoints share a list
}

// takeItem adds the data of an object that selectors match; nets nil and labels nil for none.
func (m *memberSets) takeItem(
	k model.Key, labels map[string]string, parents []string, nets []netip.Prefix,
	ports []model.EndpointPort,
) {
	fresh := &item{key: k}
	it, ok := m.items.Get(fresh)
	if !ok {
		it = fresh
		m.items.ReplaceOrInsert(it)
	}
	nets = sortedNets(nets)
	if !slices.Equal(it.nets, nets) || !slices.Equal(it.ports, ports) {
		before := *it
		it.nets, it.ports = nets, ports
		for key := range m.peers.Selectors(it) {
			s := m.of[key]
			old, now := before.contribute(nil, key), it.contribute(nil, key)
			s.weigh(k.Namespace, len(old), -1)
			s.weigh(k.Namespace, len(now), 1)
			s.replace(old, now)
		}
	}
	m.peers.SetItem(it, labels, parents)
}

func (m *memberSets) dropItem(k model.Key) {
	if it, ok := m.items.Delete(&item{key: k}); ok {
		m.peers.DeleteItem(it)
	}
}

// newItems makes a tree of items by key, which takes less memory than a map: the keys are not there twice.
func newItems() *btree.BTree[*item] {
	const degree = 32
	return btree.New(degree, func(a, b *item) bool { return a.key.Compare(b.key) < 0 })
}

// sortedNets returns nets in order, each once. nets may be those of an object in the tables, and stay as they are.
func sortedNets(nets []netip.Prefix) []netip.Prefix {
	if len(nets) < 2 {
		return nets
	}
	nets = slices.Clone(nets)
	slices.SortFunc(nets, netip.Prefix.Compare)
	return slices.Compact(nets)
}

// contribute appends the elements that an item has in a set whose selector matches it.
func (it *item) contribute(list []ruleset.Element, key setKey) []ruleset.Element {
	if key.kind == bySelector {
		for _, n := range it.nets {
			list = append(list, ruleset.Element{Prefix: n})
		}
		return list
	}
	for _, p := range it.ports {
		if p.Name == "" || !key.names(p.Name) {
			continue
		}
		protocol, err := protocolNumber(&p.Protocol)
		if err != nil || key.protocol != 0 && protocol != key.protocol {
			continue
		}
		for _, n := range it.nets {
			if n.IsSingleIP() {
				list = append(list, ruleset.Element{Prefix: n, Protocol: protocol, Low: p.Port})
			}
		}
	}
	return list
}

func (m *memberSets) peerStarted(key setKey, it *item) {
	m.elements = it.contribute(m.elements[:0], key)
	s := m.of[key]
	s.weigh(it.key.Namespace, len(m.elements), 1)
	s.replace(nil, m.elements)
}

func (m *memberSets) peerStopped(key setKey, it *item) {
	m.elements = it.contribute(m.elements[:0], key)
	s := m.of[key]
	s.weigh(it.key.Namespace, len(m.elements), -1)
	s.replace(m.elements, nil)
}

func (m *memberSets) takeNetworkSet(k model.Key, s *v3.NetworkSet) {
	if s == nil {
		m.dropItem(k)
		return
	}
	labels := map[string]string{}
	for name, v := range s.Labels {
		if !model.InheritedLabel(name) { // an author of sets in one namespace must not affect others
			labels[name] = v
		}
	}
	labels[model.LabelNamespace] = k.Namespace
	// Labels of the namespace select its network sets, too.
	m.takeItem(k, labels, []string{"kns." + k.Namespace}, parseNets(s.Spec.Nets), nil)
}

func (m *memberSets) takeGlobalNetworkSet(k model.Key, s *v3.GlobalNetworkSet) {
	if s == nil {
		m.dropItem(k)
		return
	}
	m.takeItem(k, s.Labels, nil, parseNets(s.Spec.Nets), nil)
}

// parseNets leaves out unreadable texts: validation has reported them.
func parseNets(texts []string) []netip.Prefix {
	var list []netip.Prefix
	for _, t := range texts {
		if p, err := ParseNet(t); err == nil {
			list = append(list, p)
		}
	}
	return list
}

func (c *Calculator) takeWorkload(k model.Key, w *model.Workload) {
	w = c.credible(k, w)
	// without addresses it is none, as in Calico
	if w == nil || w.Interface == "" || len(w.Networks) == 0 {
		c.sets.dropItem(k)
		c.dropEndpoint(k)
		return
	}
	labels := w.OwnLabels()
	c.sets.takeItem(k, labels, w.Profiles, w.Networks, w.Ports)
	if w.Node != c.config.Node {
		c.dropEndpoint(k)
		return
	}
	c.takeEndpoint(&endpoint{key: k, workload: w, profiles: w.Profiles}, labels)
}

func (c *Calculator) takeHost(k model.Key, h *v3.HostEndpoint) {
	if h == nil {
		c.sets.dropItem(k)
		c.dropEndpoint(k)
		return
	}
	var ports []model.EndpointPort
	for _, p := range h.Spec.Ports {
		ports = append(ports, model.EndpointPort{Name: p.Name, Protocol: p.Protocol, Port: p.Port})
	}
	c.sets.takeItem(k, h.Labels, h.Spec.Profiles, parseNets(h.Spec.ExpectedIPs), ports)
	if h.Spec.Node != c.config.Node {
		c.dropEndpoint(k)
		return
	}
	c.takeEndpoint(&endpoint{key: k, host: h, profiles: h.Spec.Profiles}, h.Labels)
}
