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

	// AnnotationGroup has the group that a node of Manx uses, during a migration from one to the other.
	AnnotationGroup = calico + "manx-api-group"

	orchestrator = "k8s"
)

// nodeField is a field of a Calico Node that an annotation of the Kubernetes Node holds.
type nodeField struct {
	annotation string
	rule       rule
	of         func(*nodeParts) *string
	// tunnel marks fields that usePodCIDR replaces.
	tunnel bool
}

// rule is the allowed content of an annotation.
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

// nodeParts is a Node with all parts allocated, possibly empty.
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

// Node returns Calico's Node of a Kubernetes Node. Unusable annotations count as missing; the notices report them.
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

// ignore reports an annotation that counts as missing.
func (r *nodeReader) ignore(annotation, rule string) {
	r.note("metadata.annotations["+annotation+"]", r.from.Annotations[annotation], rule, "the annotation is ignored")
}

func (r *nodeReader) note(field, value, rule, effect string) {
	r.notices = append(r.notices, conversion.Notice{
		Key: r.key(), Effect: effect,
		Problem: model.FieldError{Field: field, Value: shortened(value), Rule: rule},
	})
}

// labels merges Calico's labels and Kubernetes', which take priority. An annotation lists the latter, to tell them
// apart when the Node is written.
func (r *nodeReader) labels() {
	own := r.texts(annotationLabels)
	node := r.to.Node
	node.Labels = union(own, r.from.Labels)
	kube, _ := json.Marshal(r.from.Labels) // texts can always be encoded
	node.Annotations = union(r.texts(annotationAnnotations),
		map[string]string{model.AnnotationKubeLabels: string(kube)})
}

// texts parses an annotation with a map.
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

// interfaces parses the host's interfaces, and skips malformed addresses.
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

// podCIDR sets the node's tunnel addresses to the first address of its pod CIDR: with WireGuard only if the node has a
// key.
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

// nodeAddresses returns the addresses of BGP and then those from Kubernetes.
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
// Kubernetes Node of its name: it removes those without a value, and leaves everything else unchanged. The API refuses
// it if the Node has another UID or resourceVersion than o, where o has one. Labels from Kubernetes stay where they
// are.
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
		annotationAnnotations: without(node.Annotations, model.AnnotationKubeLabels),
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

// ownLabels returns the labels of a Node that are not from Kubernetes.
func ownLabels(n *model.Node) (map[string]string, error) {
	text := n.Annotations[model.AnnotationKubeLabels]
	if text == "" {
		return n.Labels, nil
	}
	var kube map[string]string
	if err := json.Unmarshal([]byte(text), &kube); err != nil {
		return nil, model.FieldError{
			Field: "metadata.annotations[" + model.AnnotationKubeLabels + "]", Value: shortened(text),
			Rule: "must be a JSON object of texts",
		}
	}
	own := maps.Clone(n.Labels)
	maps.DeleteFunc(own, func(name, _ string) bool { _, ok := kube[name]; return ok })
	return own, nil
}

// annotationPatch returns the JSON merge patch that sets annotations, or removes those that are nil.
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

// single reports whether text is an IPv4 address without a length: the only form that readers of a route reflector's
// cluster ID accept.
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
