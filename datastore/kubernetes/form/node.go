package form

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"

	"github.com/projectcalico/api/pkg/lib/numorstring"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/manxnet/manx/datastore/conversion"
	"github.com/manxnet/manx/datastore/model"
)

// Annotations of a Kubernetes Node. Those of single fields are in nodeFields.
const (
	calico                = "projectcalico.org/"
	annotationLabels      = calico + "labels"
	annotationAnnotations = calico + "annotations"
	annotationInterfaces  = calico + "Interfaces"
	annotationASNumber    = calico + "ASNumber"
	annotationPublicKey   = calico + "WireguardPublicKey"
	// annotationKubeLabels is of Calico's Node alone: the labels that are Kubernetes' own, as JSON.
	annotationKubeLabels = calico + "kube-labels"

	orchestrator = "k8s"
)

// nodeField is a field of a Calico Node that an annotation of the Kubernetes Node holds.
type nodeField struct {
	annotation string
	rule       rule
	of         func(*nodeParts) *string
	// tunnel marks what usePodCIDR has in another place.
	tunnel bool
}

// rule says what an annotation may hold.
type rule struct {
	valid func(string) bool
	want  string
}

var (
	ipv4      = rule{address(model.IPv4), "an IPv4 address or CIDR"}
	ipv6      = rule{address(model.IPv6), "an IPv6 address or CIDR"}
	clusterID = rule{single, "an IPv4 address"}
	mac       = rule{isMAC, "a MAC address"}
	publicKey = rule{isPublicKey, "a WireGuard key: 32 bytes in base64"}
)

// nodeParts is a Node the parts of which are all there, be they empty.
type nodeParts struct {
	*model.Node
	bgp       *model.NodeBGPSpec
	wireguard *model.NodeWireguard
}

var nodeFields = []nodeField{
	{calico + "IPv4Address", ipv4, func(n *nodeParts) *string { return &n.bgp.IPv4Address }, false},
	{calico + "IPv6Address", ipv6, func(n *nodeParts) *string { return &n.bgp.IPv6Address }, false},
	{calico + "RouteReflectorClusterID", clusterID, func(n *nodeParts) *string {
		return &n.bgp.RouteReflectorClusterID
	}, false},
	{calico + "IPv4IPIPTunnelAddr", ipv4, func(n *nodeParts) *string { return &n.bgp.IPv4IPIPTunnelAddr }, true},
	{calico + "IPv4VXLANTunnelAddr", ipv4, func(n *nodeParts) *string { return &n.Spec.IPv4VXLANTunnelAddr }, false},
	{calico + "VXLANTunnelMACAddr", mac, func(n *nodeParts) *string { return &n.Spec.VXLANTunnelMACAddr }, false},
	{calico + "IPv6VXLANTunnelAddr", ipv6, func(n *nodeParts) *string { return &n.Spec.IPv6VXLANTunnelAddr }, false},
	{calico + "VXLANTunnelMACAddrV6", mac, func(n *nodeParts) *string { return &n.Spec.VXLANTunnelMACAddrV6 }, false},
	{calico + "IPv4WireguardInterfaceAddr", ipv4, func(n *nodeParts) *string {
		return &n.wireguard.InterfaceIPv4Address
	}, true},
	{calico + "IPv6WireguardInterfaceAddr", ipv6, func(n *nodeParts) *string {
		return &n.wireguard.InterfaceIPv6Address
	}, true},
	{annotationPublicKey, publicKey, func(n *nodeParts) *string { return &n.Status.WireguardPublicKey }, false},
	{calico + "WireguardPublicKeyV6", publicKey, func(n *nodeParts) *string { return &n.Status.WireguardPublicKeyV6 },
		false},
}

// nodeReader reads one Kubernetes Node.
type nodeReader struct {
	from    *corev1.Node
	to      nodeParts
	notices []conversion.Notice
}

// Node gives Calico's Node of a Kubernetes Node. Annotations that cannot be used count as missing; the notices tell of
// them.
func Node(n *corev1.Node, c Config) (*model.Object, []conversion.Notice) {
	r := nodeReader{from: n, to: nodeParts{
		Node: &model.Node{
			TypeMeta:   metav1.TypeMeta{Kind: string(model.KindNode), APIVersion: model.APIVersion},
			ObjectMeta: kept(n.ObjectMeta),
			Spec:       model.NodeSpec{OrchRefs: []model.OrchRef{{NodeName: n.Name, Orchestrator: orchestrator}}},
			Status:     model.NodeStatus{PodCIDRs: n.Spec.PodCIDRs},
		},
		bgp: new(model.NodeBGPSpec), wireguard: new(model.NodeWireguard),
	}}
	r.labels()
	podCIDR := c.UsePodCIDR && n.Spec.PodCIDR != ""
	for _, f := range nodeFields {
		text := n.Annotations[f.annotation]
		switch {
		case text == "" || podCIDR && f.tunnel:
		case f.rule.valid(text):
			*f.of(&r.to) = text
		default:
			r.ignore(f.annotation, "must be "+f.rule.want)
		}
	}
	if podCIDR {
		r.podCIDR(n.Spec.PodCIDR)
	}
	r.asNumber()
	r.interfaces()
	node := r.to.Node
	if *r.to.bgp != (model.NodeBGPSpec{}) {
		node.Spec.BGP = r.to.bgp
	}
	if *r.to.wireguard != (model.NodeWireguard{}) {
		node.Spec.Wireguard = r.to.wireguard
	}
	node.Spec.Addresses = nodeAddresses(r.to.bgp, n.Status.Addresses)
	return live(r.key(), n.ResourceVersion, node), r.notices
}

func (r *nodeReader) key() model.Key { return model.ResourceKey(model.KindNode, r.from.Name) }

// ignore notes that an annotation counts as missing.
func (r *nodeReader) ignore(annotation, rule string) {
	r.note("metadata.annotations["+annotation+"]", r.from.Annotations[annotation], rule, "the annotation is ignored")
}

func (r *nodeReader) note(field, value, rule, effect string) {
	r.notices = append(r.notices, conversion.Notice{
		Key: r.key(), Effect: effect,
		Problem: model.FieldError{Field: field, Value: shortened(value), Rule: rule},
	})
}

// labels puts together Calico's own labels and Kubernetes', which win. So that they can be told apart when the Node is
// written, an annotation lists the latter.
func (r *nodeReader) labels() {
	own := r.texts(annotationLabels)
	node := r.to.Node
	node.Labels = union(own, r.from.Labels)
	kube, _ := json.Marshal(r.from.Labels) // texts can always be encoded
	node.Annotations = union(r.texts(annotationAnnotations), map[string]string{annotationKubeLabels: string(kube)})
}

// texts reads an annotation that holds a map.
func (r *nodeReader) texts(annotation string) map[string]string {
	text := r.from.Annotations[annotation]
	if text == "" {
		return nil
	}
	var m map[string]string
	if json.Unmarshal([]byte(text), &m) != nil {
		r.ignore(annotation, "must be a JSON object of texts")
		return nil
	}
	return m
}

func (r *nodeReader) asNumber() {
	text := r.from.Annotations[annotationASNumber]
	if text == "" {
		return
	}
	as, err := numorstring.ASNumberFromString(text)
	if err != nil {
		r.ignore(annotationASNumber, "must be an AS number")
		return
	}
	r.to.bgp.ASNumber = &as
}

// interfaces reads the interfaces of the host, and leaves out what is no address.
func (r *nodeReader) interfaces() {
	text := r.from.Annotations[annotationInterfaces]
	if text == "" {
		return
	}
	var list []model.NodeInterface
	if json.Unmarshal([]byte(text), &list) != nil {
		r.ignore(annotationInterfaces, "must be a JSON list of interfaces")
		return
	}
	for i := range list {
		list[i].Addresses = slices.DeleteFunc(list[i].Addresses, func(text string) bool {
			_, err := netip.ParseAddr(text)
			if err != nil {
				field := fmt.Sprintf("metadata.annotations[%s][%d]", annotationInterfaces, i)
				r.note(field, text, "must be an IP address", "the address is left out")
			}
			return err != nil
		})
	}
	r.to.Spec.Interfaces = list
}

// podCIDR gives the node the first address of its pods' range in tunnels: with WireGuard only if it has a key.
func (r *nodeReader) podCIDR(text string) {
	p, err := netip.ParsePrefix(text)
	if err != nil {
		r.note("spec.podCIDR", text, "must be a CIDR", "the node has no tunnel address")
		return
	}
	if !p.Addr().Is4() {
		return
	}
	first := p.Masked().Addr().Next().String()
	r.to.bgp.IPv4IPIPTunnelAddr = first
	if r.to.Status.WireguardPublicKey != "" {
		r.to.wireguard.InterfaceIPv4Address = first
	}
}

// nodeAddresses returns those of BGP and then those that Kubernetes knows.
func nodeAddresses(b *model.NodeBGPSpec, known []corev1.NodeAddress) []model.NodeAddress {
	var list []model.NodeAddress
	for _, text := range []string{b.IPv4Address, b.IPv6Address} {
		if text != "" {
			list = append(list, model.NodeAddress{Address: text, Type: "CalicoNodeIP"})
		}
	}
	for _, a := range known {
		if a.Type == corev1.NodeInternalIP || a.Type == corev1.NodeExternalIP {
			list = append(list, model.NodeAddress{Address: a.Address, Type: string(a.Type)})
		}
	}
	return list
}

// NodePatch returns the JSON merge patch (RFC 7386) of nodes/status that stores a Calico Node in the annotations of the
// Kubernetes Node of its name: it takes away those that it has no value for, and leaves everything else alone. It fails
// in the API if the Node has another UID or resourceVersion; either is left open where o has none. Labels that are
// Kubernetes' own stay where they are.
func NodePatch(o *model.Object) ([]byte, error) {
	node, ok := o.Value.(*model.Node)
	if !ok {
		return nil, fmt.Errorf("%s: a %T is no Node", o.Key, o.Value)
	}
	n := nodeParts{Node: node, bgp: node.Spec.BGP, wireguard: node.Spec.Wireguard}
	if n.bgp == nil {
		n.bgp = new(model.NodeBGPSpec)
	}
	if n.wireguard == nil {
		n.wireguard = new(model.NodeWireguard)
	}
	patch := map[string]*string{}
	set := func(annotation, text string) {
		patch[annotation] = nil
		if text != "" {
			patch[annotation] = &text
		}
	}
	for _, f := range nodeFields {
		set(f.annotation, *f.of(&n))
	}
	as := ""
	if n.bgp.ASNumber != nil {
		as = n.bgp.ASNumber.String()
	}
	set(annotationASNumber, as)
	labels, err := ownLabels(node)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", o.Key, err)
	}
	for annotation, v := range map[string]any{
		annotationLabels: labels, annotationInterfaces: node.Spec.Interfaces,
		annotationAnnotations: without(node.Annotations, annotationKubeLabels),
	} {
		text, err := json.Marshal(v)
		if err != nil {
			return nil, err
		}
		if string(text) == "null" || string(text) == "{}" {
			text = nil
		}
		set(annotation, string(text))
	}
	return annotationPatch(node.UID, o.Revision, patch)
}

// ownLabels returns the labels of a Node that are not Kubernetes'.
func ownLabels(n *model.Node) (map[string]string, error) {
	text := n.Annotations[annotationKubeLabels]
	if text == "" {
		return n.Labels, nil
	}
	var kube map[string]string
	if err := json.Unmarshal([]byte(text), &kube); err != nil {
		return nil, model.FieldError{
			Field: "metadata.annotations[" + annotationKubeLabels + "]", Value: shortened(text),
			Rule: "must be a JSON object of texts",
		}
	}
	own := maps.Clone(n.Labels)
	maps.DeleteFunc(own, func(name, _ string) bool { _, ok := kube[name]; return ok })
	return own, nil
}

// annotationPatch returns the JSON merge patch that sets annotations, or takes away those that are nil.
func annotationPatch[T any](uid any, revision int64, annotations map[string]T) ([]byte, error) {
	meta := map[string]any{"annotations": annotations}
	if text := fmt.Sprint(uid); text != "" {
		meta["uid"] = text
	}
	if revision != 0 {
		meta["resourceVersion"] = strconv.FormatInt(revision, 10)
	}
	return json.Marshal(map[string]any{"metadata": meta})
}

func address(f model.Family) func(string) bool {
	return func(text string) bool { return model.ParseAddress(text, f).IsValid() }
}

// single tells an IPv4 address without a length: the only form that readers of a route reflector's cluster take.
func single(text string) bool {
	a, err := netip.ParseAddr(text)
	return err == nil && a.Is4()
}

func isMAC(text string) bool {
	_, err := net.ParseMAC(text)
	return err == nil
}

func isPublicKey(text string) bool {
	b, err := base64.StdEncoding.DecodeString(text)
	return err == nil && len(b) == 32
}
