package property

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	"github.com/projectcalico/api/pkg/lib/numorstring"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/manxnet/manx/dataplane/policy"
	"github.com/manxnet/manx/datastore/codec"
	"github.com/manxnet/manx/datastore/model"
)

// The node has six workload interfaces and one uplink. Everything in a world has one of a few names, labels and
// addresses, so that random values often coincide.
const (
	thisNode  = "here"
	uplink    = "eth0"
	localPods = 6
)

var (
	namespaces = []string{"red", "blue"}
	accounts   = []string{"web", "db"}
	portNames  = []string{"http", "dns", "none"}
	portTypes  = []string{"TCP", "UDP", "SCTP"}
	numbers    = []uint16{53, 80, 81, 443, 8080}
)

func podInterface(i int) string { return fmt.Sprintf("cali%d", i) }

func localAddress(i int, v6 bool) netip.Addr {
	if v6 {
		return netip.AddrFrom16([16]byte{0xfd, 0x65, 15: byte(10 + i)})
	}
	return netip.AddrFrom4([4]byte{10, 65, 0, byte(10 + i)})
}

func remoteAddress(i int, v6 bool) netip.Addr {
	if v6 {
		return netip.AddrFrom16([16]byte{0xfd, 0x65, 13: 1, 15: byte(10 + i)})
	}
	return netip.AddrFrom4([4]byte{10, 65, 1, byte(10 + i)})
}

// outsideAddress: 0 is the neighbour on the uplink, 1 to 3 are behind it.
func outsideAddress(i int, v6 bool) netip.Addr {
	switch {
	case v6 && i == 0:
		return netip.MustParseAddr("2001:db8::2")
	case v6:
		return netip.AddrFrom16([16]byte{0x20, 0x01, 0x0d, 0xb8, 5: 1, 15: byte(i)})
	case i == 0:
		return netip.MustParseAddr("192.0.2.2")
	}
	return netip.AddrFrom4([4]byte{198, 51, 100, byte(i)})
}

// floatingAddress is one that workloads of this node may have besides their own.
func floatingAddress(i int, v6 bool) netip.Addr {
	if v6 {
		return netip.AddrFrom16([16]byte{0x20, 0x01, 0x0d, 0xb8, 5: 2, 15: byte(i)})
	}
	return netip.AddrFrom4([4]byte{203, 0, 113, byte(i)})
}

func hostAddress(v6 bool) netip.Addr {
	if v6 {
		return netip.MustParseAddr("2001:db8::1")
	}
	return netip.MustParseAddr("192.0.2.1")
}

// hostLinks are the interfaces of the node.
func hostLinks() map[string][]netip.Addr {
	links := map[string][]netip.Addr{"lo": {netip.MustParseAddr("127.0.0.1")},
		uplink: {hostAddress(false), hostAddress(true)}}
	for i := range localPods {
		links[podInterface(i)] = nil
	}
	return links
}

// nets are networks and addresses that objects name; some lie in others.
var nets = []string{
	"0.0.0.0/0", "10.0.0.0/8", "10.65.0.0/16", "10.65.0.0/24", "10.65.0.8/29", "10.65.0.10/32", "10.65.0.11/32",
	"10.65.1.0/24",
	"10.65.1.11/32", "192.0.2.0/24", "192.0.2.1/32", "198.51.100.0/24", "198.51.100.1/32", "198.51.100.2/31",
	"128.0.0.0/1",
	"::/0", "fd65::/16", "fd65::/64", "fd65::8/125", "fd65::a/128", "fd65::1:0/112", "2001:db8::/32", "2001:db8::1/128",
	"2001:db8:1::/64",
	"10.65.0.13/24", "198.51.100.1", "::ffff:10.65.0.10", "fd65::b/64", // host bits, bare addresses
}

// generator makes random objects.
type generator struct {
	*rand.Rand
	noLimits bool // no object limits rates, and all prefixes of interfaces stay as they are
}

func newGenerator(seed uint64) *generator { return &generator{Rand: rand.New(rand.NewPCG(seed, 4))} }

// config is a possible configuration by an administrator.
func (g *generator) config() policy.Config {
	return policy.Config{Node: thisNode, Counters: g.one(2), FlowLog: pick(g, []uint16{0, 7})}
}

func (g *generator) one(of int) bool { return g.IntN(of) == 0 }

func pick[T any](g *generator, list []T) T { return list[g.IntN(len(list))] }

func some[T any](g *generator, list []T, most int) []T {
	var out []T
	for range 1 + g.IntN(most) {
		out = append(out, pick(g, list))
	}
	return out
}

func (g *generator) labels() map[string]string {
	l := map[string]string{}
	for _, name := range []string{"app", "tier", "zone"} {
		if !g.one(3) {
			l[name] = pick(g, []string{"a", "b", "c", ""})
		}
	}
	return l
}

// key is the name of something that may exist or not.
func (g *generator) key() model.Key {
	name := func(n int) string {
		if g.one(12) {
			return strings.Repeat("long.", 50) + fmt.Sprint(g.IntN(2))
		}
		return fmt.Sprint("n", g.IntN(n))
	}
	named := func(k model.Kind, n int) model.Key { return model.ResourceKey(k, name(n)) }
	inside := func(k model.Kind, n int) model.Key {
		return model.Key{Kind: k, Namespace: pick(g, namespaces), Name: name(n)}
	}
	if g.one(15) {
		return g.kubernetesKey()
	}
	switch g.IntN(20) {
	case 0, 1, 2, 3:
		return model.Key{Kind: model.KindWorkloadEndpoint, Namespace: pick(g, namespaces),
			Name: podNames[g.IntN(len(podNames))]}
	case 4, 5, 6:
		return inside(model.KindNetworkPolicy, 5)
	case 7, 8, 9, 10:
		return named(model.KindGlobalNetworkPolicy, 9)
	case 11:
		return inside(model.KindStagedNetworkPolicy, 2)
	case 12:
		return named(model.KindStagedGlobalNetworkPolicy, 2)
	case 13:
		return model.ResourceKey(model.KindTier, pick(g, tierNames))
	case 14:
		return model.ResourceKey(model.KindProfile, pick(g, profileNames))
	case 15:
		return inside(model.KindNetworkSet, 3)
	case 16:
		return named(model.KindGlobalNetworkSet, 3)
	case 17:
		return named(model.KindHostEndpoint, 4)
	case 18:
		return inside(model.KindEndpointSlice, 3)
	}
	switch g.IntN(5) {
	case 0:
		return model.ResourceKey(model.KindFelixConfiguration,
			pick(g, []string{"default", "node." + thisNode, "node.other"}))
	case 1:
		return named(model.KindIPPool, 3)
	case 2:
		return model.ResourceKey(model.KindNode, pick(g, []string{thisNode, "other"}))
	case 3:
		return model.ResourceKey(model.KindBGPConfiguration, "default")
	}
	return model.ResourceKey(model.KindTier, pick(g, tierNames))
}

var (
	tierNames    = []string{"default", "first", "second", "kube-admin"}
	profileNames = []string{"kns.red", "kns.blue", "ksa.red.web", "extra", model.DefaultAllowProfile}
)

func meta(k model.Key) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: k.Namespace, Name: k.Name}
}

// object makes a version of an object.
func (g *generator) object(k model.Key) *model.Object {
	m := meta(k)
	var v any
	switch k.Kind {
	case model.KindKubernetesNetworkPolicy, model.KindStagedKubernetesNetworkPolicy, model.KindClusterNetworkPolicy:
		return g.kubernetes(k)
	case model.KindWorkloadEndpoint:
		v = g.workload(k)
	case model.KindHostEndpoint:
		v = g.host(k)
	case model.KindNetworkPolicy:
		v = &v3.NetworkPolicy{ObjectMeta: m, Spec: g.namespaced(k.Namespace)}
	case model.KindStagedNetworkPolicy:
		s := g.namespaced(k.Namespace)
		v = &v3.StagedNetworkPolicy{ObjectMeta: m, Spec: v3.StagedNetworkPolicySpec{
			StagedAction: pick(g, stagedActions), Tier: s.Tier, Order: s.Order,
			Selector: s.Selector, Types: s.Types, Ingress: s.Ingress, Egress: s.Egress,
			ServiceAccountSelector: s.ServiceAccountSelector}}
	case model.KindGlobalNetworkPolicy:
		v = &v3.GlobalNetworkPolicy{ObjectMeta: m, Spec: g.global()}
	case model.KindStagedGlobalNetworkPolicy:
		s := g.global()
		v = &v3.StagedGlobalNetworkPolicy{ObjectMeta: m, Spec: v3.StagedGlobalNetworkPolicySpec{
			StagedAction: pick(g, stagedActions), Tier: s.Tier, Order: s.Order,
			Selector: s.Selector, NamespaceSelector: s.NamespaceSelector, Types: s.Types, Ingress: s.Ingress,
			Egress:     s.Egress,
			DoNotTrack: s.DoNotTrack, PreDNAT: s.PreDNAT, ApplyOnForward: s.ApplyOnForward}}
	case model.KindTier:
		v = g.tier(k)
	case model.KindProfile:
		v = g.profile(k)
	case model.KindNetworkSet:
		if m.Labels = g.labels(); g.one(8) {
			m.Labels[pick(g, []string{"pcns.app", "pcns.projectcalico.org/name", "pcsa.tier"})] = pick(g,
				[]string{"a", "red"})
		}
		v = &v3.NetworkSet{ObjectMeta: m, Spec: v3.NetworkSetSpec{Nets: g.members()}}
	case model.KindGlobalNetworkSet:
		m.Labels = g.labels()
		v = &v3.GlobalNetworkSet{ObjectMeta: m, Spec: v3.GlobalNetworkSetSpec{Nets: g.members()}}
	case model.KindEndpointSlice:
		v = g.slice(k)
	case model.KindFelixConfiguration:
		v = &model.FelixConfiguration{ObjectMeta: m, Spec: g.felix()}
	case model.KindIPPool:
		cidr := pick(g, []string{"10.65.0.0/16", "10.66.0.0/16", "fd65::/64"})
		p := &model.IPPool{ObjectMeta: m, Spec: model.IPPoolSpec{CIDR: cidr, NATOutgoing: g.one(2)}}
		if g.one(3) && cidr[0] == '1' {
			p.Spec.IPIPMode = v3.IPIPModeAlways
		}
		if g.one(2) { // that of floatingAddress
			p.Spec = model.IPPoolSpec{CIDR: pick(g, []string{"203.0.113.0/24", "2001:db8:2::/64"}), Disabled: true}
			p.Annotations = map[string]string{"manx.io/floating": "true"}
		}
		v = p
	case model.KindNode:
		v = &model.Node{ObjectMeta: m, Spec: model.NodeSpec{
			BGP: &model.NodeBGPSpec{IPv4Address: pick(g, []string{"192.0.2.1/24", "192.0.2.2/24"})}}}
	case model.KindBGPConfiguration:
		v = &model.BGPConfiguration{ObjectMeta: m, Spec: model.BGPConfigurationSpec{
			ServiceClusterIPs: []v3.ServiceClusterIPBlock{
				{CIDR: pick(g, []string{"198.51.100.2/31", "10.96.0.0/12", "2001:db8:1::/64"})}}}}
	}
	return model.NewObject(k, v)
}

var stagedActions = []v3.StagedAction{v3.StagedActionSet, v3.StagedActionDelete, "", v3.StagedActionIgnore}

// members of a network set: sometimes only addresses, since then the kernel's set is another.
func (g *generator) members() []string {
	if g.one(8) {
		return nil
	}
	list := some(g, nets, 4)
	if g.one(2) {
		for i := range list {
			list[i] = pick(g, []string{"10.65.0.10", "10.65.1.11/32", "198.51.100.1", "192.0.2.2", "fd65::a",
				"2001:db8::2/128"})
		}
	}
	return list
}

// podNames are those that node and pod make.
var podNames = func() (list []string) {
	for n := range 14 {
		node := thisNode
		if n >= localPods && n < 10 {
			node = "other"
		}
		list = append(list, fmt.Sprintf("%s-k8s-w%02d-eth0", node, n))
	}
	return list
}()

// workload: w00 to w05 are at home on this node's interfaces, w06 to w09 are elsewhere, others may claim any interface.
func (g *generator) workload(k model.Key) *model.WorkloadEndpoint {
	n := slices.IndexFunc(podNames, func(name string) bool { return name == k.Name })
	w := &model.WorkloadEndpoint{ObjectMeta: meta(k)}
	w.Labels = g.labels()
	account := pick(g, accounts)
	w.Labels[model.LabelNamespace], w.Labels[model.LabelServiceAccount],
		w.Labels[model.LabelOrchestrator] = k.Namespace, account, "k8s"
	if g.one(8) { // with labels that it must not set
		w.Labels[pick(g, []string{"pcns.app", "pcns.projectcalico.org/name", "pcsa.app", "pcsa.tier"})] = pick(g,
			[]string{"a", "red"})
		w.Labels[model.LabelServiceAccount] = pick(g, accounts)
	}
	w.Spec = model.WorkloadEndpointSpec{Node: thisNode, Orchestrator: "k8s", Pod: fmt.Sprintf("w%02d", n),
		Endpoint: "eth0", InterfaceName: podInterface(n % localPods),
		Profiles: []string{"kns." + k.Namespace}, ServiceAccountName: account}
	switch {
	case n < localPods:
		w.Spec.IPNetworks = g.randomHostPrefixes(localAddress(n, false), localAddress(n, true))
	case n < 10:
		w.Spec.Node = "other"
		w.Spec.IPNetworks = g.randomHostPrefixes(remoteAddress(n-localPods, false), remoteAddress(n-localPods, true))
	default:
		i := g.IntN(localPods)
		w.Spec.InterfaceName = podInterface(i)
		w.Spec.IPNetworks = g.randomHostPrefixes(localAddress(i, false), localAddress(i, true))
	}
	if g.one(10) { // of a family it has two, the other one has no route
		w.Spec.IPNetworks = append(w.Spec.IPNetworks,
			pick(g, []string{"10.65.0.99/32", "192.0.2.2/32", "fd65::99/128", remoteAddress(0, false).String()}))
	}
	if g.one(2) {
		w.Spec.Profiles = append(w.Spec.Profiles, "ksa."+k.Namespace+"."+account)
	}
	if g.one(6) {
		w.Spec.Profiles = some(g, append([]string{"missing"}, profileNames...), 3)
	}
	if g.one(10) {
		w.Spec.Profiles = nil
	}
	if g.one(10) {
		w.Spec.AllowSpoofedSourcePrefixes = some(g, nets, 2)
	}
	for _, v6 := range []bool{false, true} {
		if g.one(5) && len(w.Spec.IPNetworks) > 0 && w.Spec.Node == thisNode {
			internal := parseNet(pick(g, w.Spec.IPNetworks)).Addr()
			w.Spec.IPNATs = append(w.Spec.IPNATs,
				model.IPNAT{InternalIP: internal.String(), ExternalIP: floatingAddress(g.IntN(4), internal.Is6() ||
					v6 && g.one(9)).String()})
		}
	}
	if g.one(10) && !g.noLimits {
		w.Spec.QoSControls = &model.QoSControls{IngressPacketRate: 1000, EgressMaxConnections: int64(g.IntN(2) * 100)}
	}
	for range g.IntN(3) {
		w.Spec.Ports = append(w.Spec.Ports, model.EndpointPort{Name: pick(g, portNames[:2]),
			Protocol: numorstring.ProtocolFromString(pick(g, portTypes)), Port: pick(g, numbers)})
	}
	return w
}

func (g *generator) randomHostPrefixes(four, six netip.Addr) []string {
	list := []string{four.String() + "/32", six.String() + "/128"}
	switch g.IntN(6) {
	case 0:
		return list[:1]
	case 1:
		return list[1:]
	}
	return list
}

func (g *generator) host(k model.Key) *v3.HostEndpoint {
	h := &v3.HostEndpoint{ObjectMeta: meta(k)}
	h.Labels = g.labels()
	if g.one(2) {
		h.Labels["host"] = "yes"
	}
	h.Spec.Node = thisNode
	switch g.IntN(6) {
	case 0, 1:
		h.Spec.InterfaceName = "*"
	case 2, 3:
		h.Spec.InterfaceName = uplink
	case 4:
		h.Spec.Node = "other"
		h.Spec.ExpectedIPs = []string{"192.0.2.2"}
	}
	if h.Spec.InterfaceName == "" || g.one(2) {
		h.Spec.ExpectedIPs = append(h.Spec.ExpectedIPs, pick(g, []string{"192.0.2.1", "2001:db8::1", "192.0.2.77"}))
	}
	if g.one(2) {
		h.Spec.Profiles = some(g, append([]string{"missing"}, profileNames...), 2)
	}
	if g.one(3) {
		h.Spec.Ports = []v3.EndpointPort{
			{Name: pick(g, portNames[:2]), Protocol: numorstring.ProtocolFromString(pick(g, portTypes)),
				Port: pick(g, numbers)}}
	}
	return h
}

func (g *generator) tier(k model.Key) *model.Tier {
	t := &model.Tier{ObjectMeta: meta(k)}
	switch k.Name {
	case "default":
		order, action := float64(v3.DefaultTierOrder), v3.Deny
		t.Spec = v3.TierSpec{Order: &order, DefaultAction: &action}
		return t
	case "kube-admin":
		order, action := float64(v3.AdminNetworkPolicyTierOrder), v3.Pass
		t.Spec = v3.TierSpec{Order: &order, DefaultAction: &action}
		return t
	}
	t.Spec.Order = g.order()
	if g.one(2) {
		action := pick(g, []v3.Action{v3.Deny, v3.Pass})
		t.Spec.DefaultAction = &action
	}
	return t
}

func (g *generator) order() *float64 {
	if g.one(3) {
		return nil
	}
	n := float64(g.IntN(4) * 10)
	return &n
}

func (g *generator) profile(k model.Key) *v3.Profile {
	p := &v3.Profile{ObjectMeta: meta(k)}
	if !g.one(6) {
		p.Spec.LabelsToApply = map[string]string{}
		for name, v := range g.labels() {
			p.Spec.LabelsToApply[pick(g, []string{"pcns.", "pcsa.", ""})+name] = v
		}
		if g.one(2) {
			p.Spec.LabelsToApply["pcns.projectcalico.org/name"] = pick(g, namespaces)
		}
	}
	switch g.IntN(4) {
	case 0:
		p.Spec.Ingress, p.Spec.Egress = g.rules("", true, false), g.rules("", false, false)
	case 1, 2:
		p.Spec.Ingress, p.Spec.Egress = []v3.Rule{{Action: v3.Allow}}, []v3.Rule{{Action: v3.Allow}}
	}
	return p
}

func (g *generator) slice(k model.Key) *model.EndpointSlice {
	s := &model.EndpointSlice{ObjectMeta: meta(k), AddressType: "IPv4"}
	s.Labels = map[string]string{model.LabelServiceName: pick(g, serviceNames)}
	v6 := g.one(3)
	if v6 {
		s.AddressType = "IPv6"
	}
	for range 1 + g.IntN(3) {
		a := localAddress(g.IntN(localPods), v6)
		if g.one(3) {
			a = remoteAddress(g.IntN(3), v6)
		}
		s.Endpoints = append(s.Endpoints, model.Endpoint{Addresses: []string{a.String()}})
	}
	for range 1 + g.IntN(2) {
		protocol, port := pick(g, portTypes), int32(pick(g, numbers))
		p := model.SlicePort{Protocol: &protocol, Port: &port}
		if g.one(4) {
			p.Protocol = nil
		}
		s.Ports = append(s.Ports, p)
	}
	return s
}

var serviceNames = []string{"front", "back"}

func (g *generator) felix() model.FelixConfigurationSpec {
	var s model.FelixConfigurationSpec
	yes := true
	s.DefaultEndpointToHostAction = pick(g, []string{"", "Accept", "Drop", "Return"})
	s.WorkloadSourceSpoofing = pick(g, []string{"", "Any", "Disabled"})
	s.NftablesFilterDenyAction = pick(g, []string{"", "", "Reject", "Drop"})
	if g.one(3) {
		s.AllowIPIPPacketsFromWorkloads = &yes
	}
	if g.one(3) {
		s.FailsafeInboundHostPorts = &[]v3.ProtoPort{{Protocol: "tcp", Port: pick(g, numbers)},
			{Protocol: "udp", Port: pick(g, numbers), Net: pick(g, nets)}}
	}
	if g.one(3) {
		s.FailsafeOutboundHostPorts = &[]v3.ProtoPort{{Protocol: "udp", Port: pick(g, numbers)}}
	}
	if g.one(4) {
		s.ServiceLoopPrevention = pick(g, []string{"Drop", "Reject", "Disabled"})
	}
	if g.one(2) {
		floating := pick(g, []v3.FloatingIPType{v3.FloatingIPsEnabled, v3.FloatingIPsEnabled, v3.FloatingIPsDisabled})
		s.FloatingIPs = &floating
	}
	if g.one(4) && !g.noLimits {
		s.InterfacePrefix = pick(g, []string{"cali", "cali,tap", "tap"})
	}
	return s
}

// Worlds hold nothing that a node would leave alone.
func TestWorldsAreValid(t *testing.T) {
	for seed := range uint64(20) {
		g := newGenerator(seed)
		g.noLimits = g.one(2)
		for k, o := range g.world(100) {
			raw, err := codec.Encode(o)
			if err == nil {
				err = codec.Decode(k, raw, 1).Err
			}
			if err != nil {
				t.Errorf("seed %d: %s: %v", seed, k, err)
			}
		}
	}
}
