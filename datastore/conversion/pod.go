package conversion

import (
	"crypto/sha1" //nolint:gosec // a name, not a secret
	"encoding/hex"
	"encoding/json"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/projectcalico/api/pkg/lib/numorstring"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/manxnet/manx/datastore/model"
)

const (
	orchestrator = "k8s"
	endpoint     = "eth0" // a pod's only interface that Calico knows

	annotationAWSIPs      = "vpc.amazonaws.com/pod-ips"
	annotationFloatingIPs = "cni.projectcalico.org/floatingIPs"
	annotationSources     = "cni.projectcalico.org/allowedSourcePrefixes"
	annotationNetworks    = "k8s.v1.cni.cncf.io/network-status"
)

// Annotations of the CNI plugin with the addresses of a pod and its container, which it sets before Kubernetes knows
// them. Those of the addresses are present but empty once the addresses are released.
const (
	AnnotationIPs       = "cni.projectcalico.org/podIPs"
	AnnotationIP        = "cni.projectcalico.org/podIP"
	AnnotationContainer = "cni.projectcalico.org/containerID"
)

// addressAnnotations request addresses for a pod. They are valid on a pod or its namespace, or on the pod alone.
var addressAnnotations = []string{
	"cni.projectcalico.org/ipv4pools", "cni.projectcalico.org/ipv6pools", "cni.projectcalico.org/ipFamilies",
	"cni.projectcalico.org/ipAddrs", "cni.projectcalico.org/ipAddrsNoIpam", "cni.projectcalico.org/hwAddr",
	annotationFloatingIPs,
}

// AddressAnnotations returns the annotations of a pod or a namespace that request addresses for pods.
func AddressAnnotations(all map[string]string) map[string]string {
	var some map[string]string
	for _, name := range addressAnnotations {
		if text, ok := all[name]; ok {
			if some == nil {
				some = map[string]string{}
			}
			some[name] = text
		}
	}
	return some
}

// longestLabelledAccount is the longest service account name that is also an endpoint label.
const longestLabelledAccount = 62

// Pod returns the endpoint of a pod. prefix is the prefix of its interface name on the host. The result is nil for a
// pod without endpoint: one in the host's network, or one without a node. A finished pod has an endpoint without
// addresses, which may be another pod's by now. Unusable annotations are left out; the notices report them. The error
// is a model.FieldError: the name of the pod or of its node is invalid for an endpoint.
func Pod(in *model.Pod, prefix string) (*model.WorkloadEndpoint, []Notice, error) {
	if in.Spec.HostNetwork || in.Spec.NodeName == "" {
		return nil, nil, nil
	}
	ids := model.WorkloadEndpointIDs{Node: in.Spec.NodeName, Orchestrator: orchestrator, Pod: in.Name,
		Endpoint: endpoint}
	name, err := model.WorkloadEndpointName(ids)
	if err != nil {
		return nil, nil, err
	}
	n := &notices{key: model.Key{Kind: model.KindPod, Namespace: in.Namespace, Name: in.Name}}
	w := &model.WorkloadEndpoint{
		TypeMeta: metav1.TypeMeta{Kind: string(model.KindWorkloadEndpoint), APIVersion: model.APIVersion},
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: in.Namespace, GenerateName: in.GenerateName, UID: in.UID,
			CreationTimestamp: in.CreationTimestamp,
			Labels:            podLabels(in), Annotations: AddressAnnotations(in.Annotations),
		},
		Spec: model.WorkloadEndpointSpec{
			Orchestrator: orchestrator, Node: in.Spec.NodeName, Pod: in.Name, Endpoint: endpoint,
			ContainerID: in.Annotations[AnnotationContainer], ServiceAccountName: in.Spec.ServiceAccountName,
			Profiles: []string{NamespaceProfile(in.Namespace)}, InterfaceName: InterfaceName(prefix, in.Namespace,
				in.Name),
			Ports: podPorts(n, in), AllowSpoofedSourcePrefixes: sources(n, in),
			QoSControls: qosControls(n, in.Annotations),
		},
	}
	if a := in.Spec.ServiceAccountName; a != "" {
		w.Spec.Profiles = append(w.Spec.Profiles, ServiceAccountProfile(in.Namespace, a))
	}
	if status, ok := in.Annotations[annotationNetworks]; ok {
		if w.Annotations == nil {
			w.Annotations = map[string]string{}
		}
		w.Annotations[annotationNetworks] = status
	}
	if !finished(in) {
		w.Spec.IPNetworks, w.Spec.IPNATs, w.Spec.Claim = podAddresses(n, in)
	}
	return w, n.list, nil
}

// podAddresses returns the addresses of a pod: those of its status, which only the kubelet writes, or else a claim with
// those of its annotations.
func podAddresses(n *notices, in *model.Pod) (networks []string, nats []model.IPNAT, claim *model.Claim) {
	ips, confirmed := podIPs(n, in)
	for _, a := range ips {
		networks = append(networks, netip.PrefixFrom(a, a.BitLen()).String())
	}
	nats = floatingIPs(n, in, ips)
	if !confirmed && len(ips) > 0 {
		return nil, nil, &model.Claim{IPNetworks: networks, IPNATs: nats}
	}
	return networks, nats, nil
}

// InterfaceName returns Calico's name of a pod's host interface.
func InterfaceName(prefix, namespace, pod string) string {
	sum := sha1.Sum([]byte(namespace + "." + pod)) //nolint:gosec
	return prefix + hex.EncodeToString(sum[:6])[:11]
}

func podLabels(in *model.Pod) map[string]string {
	labels := make(map[string]string, len(in.Labels)+3)
	maps.Copy(labels, in.Labels)
	labels[model.LabelNamespace] = in.Namespace
	labels[model.LabelOrchestrator] = orchestrator
	if a := in.Spec.ServiceAccountName; a != "" && len(a) <= longestLabelledAccount {
		labels[model.LabelServiceAccount] = a
	}
	return labels
}

// finished reports whether a pod has released its addresses. While it is being deleted, the CNI plugin reports that by
// an annotation that is present but empty.
func finished(in *model.Pod) bool {
	switch corev1.PodPhase(in.Status.Phase) {
	case corev1.PodSucceeded, corev1.PodFailed, "Completed":
		return true
	}
	return in.DeletionTimestamp != nil && slices.ContainsFunc([]string{AnnotationIP, annotationAWSIPs},
		func(a string) bool {
			text, ok := in.Annotations[a]
			return ok && text == ""
		})
}

// podIPs returns the addresses of the first source that names any, and whether it is the status. The plugin's
// annotations are set before the status.
func podIPs(n *notices, in *model.Pod) (ips []netip.Addr, confirmed bool) {
	status := make([]string, len(in.Status.PodIPs))
	for i, ip := range in.Status.PodIPs {
		status[i] = ip.IP
	}
	if ips, named := addresses(n, "status.podIPs", status...); named {
		return ips, true
	}
	if ips, named := addresses(n, "status.podIP", in.Status.PodIP); named {
		return ips, true
	}
	for _, a := range []string{AnnotationIPs, AnnotationIP, annotationAWSIPs} {
		text := in.Annotations[a]
		if len(text) > longestList {
			n.add(wrong(annotation(a), text, "must have at most %d bytes", longestList), "the annotation is left out")
			continue
		}
		if ips, named := addresses(n, annotation(a), strings.Split(text, ",")...); named {
			return oneOfEachFamily(ips), false
		}
	}
	return nil, false
}

// oneOfEachFamily returns the first address of each family: the plugin writes no more, and IPAM assigns no more.
func oneOfEachFamily(ips []netip.Addr) (first []netip.Addr) {
	for _, ip := range ips {
		if !slices.ContainsFunc(first, func(have netip.Addr) bool { return have.Is4() == ip.Is4() }) {
			first = append(first, ip)
		}
	}
	return first
}

// addresses parses the addresses of one source, and reports whether it names any.
func addresses(n *notices, field string, texts ...string) (ips []netip.Addr, named bool) {
	for _, text := range texts {
		if text = strings.TrimSpace(text); text == "" {
			continue
		}
		named = true
		if ip, ok := address(text); ok {
			ips = append(ips, ip)
		} else {
			n.add(wrong(field, text, "must be an IP address"), "the address is left out")
		}
	}
	return ips, named
}

// address parses an address or a CIDR of a single address.
func address(text string) (netip.Addr, bool) {
	if p, err := netip.ParsePrefix(text); err == nil {
		return p.Addr(), p.IsSingleIP() && !p.Addr().Is4In6()
	}
	ip, err := netip.ParseAddr(text)
	return ip, err == nil && !ip.Is4In6() && ip.Zone() == ""
}

// podPorts returns the ports with a name or a host port.
func podPorts(n *notices, in *model.Pod) []model.EndpointPort {
	var ports []model.EndpointPort
	for _, list := range []struct {
		field      string
		containers []model.Container
	}{{"spec.containers", in.Spec.Containers}, {"spec.initContainers", in.Spec.InitContainers}} {
		for i, c := range list.containers {
			for j, p := range c.Ports {
				if p.ContainerPort == 0 || (p.Name == "" && p.HostPort == 0) {
					continue
				}
				port, err := endpointPort(p)
				if err != nil {
					err.Field = at(at(list.field, i)+".ports", j) + "." + err.Field
					n.add(*err, "the port is left out")
					continue
				}
				ports = append(ports, port)
			}
		}
	}
	return ports
}

func endpointPort(p model.ContainerPort) (model.EndpointPort, *model.FieldError) {
	protocol := numorstring.ProtocolTCP
	switch p.Protocol {
	case "":
	case numorstring.ProtocolTCP, numorstring.ProtocolUDP, numorstring.ProtocolSCTP:
		protocol = p.Protocol
	default:
		return model.EndpointPort{}, &model.FieldError{Field: "protocol", Value: p.Protocol,
			Rule: "must be TCP, UDP or SCTP"}
	}
	switch {
	case p.ContainerPort < 1 || p.ContainerPort > 65535:
		return model.EndpointPort{}, &model.FieldError{Field: "containerPort", Value: p.ContainerPort,
			Rule: "must be from 1 to 65535"}
	case p.HostPort < 0 || p.HostPort > 65535:
		return model.EndpointPort{}, &model.FieldError{Field: "hostPort", Value: p.HostPort,
			Rule: "must be from 1 to 65535"}
	}
	return model.EndpointPort{
		Name: p.Name, Protocol: numorstring.ProtocolFromString(protocol), Port: uint16(p.ContainerPort),
		HostPort: uint16(p.HostPort), HostIP: p.HostIP,
	}, nil
}

// floatingIPs maps each floating address to the pod's own of the same family.
func floatingIPs(n *notices, in *model.Pod, own []netip.Addr) []model.IPNAT {
	var nats []model.IPNAT
	for _, text := range annotatedList(n, in, annotationFloatingIPs) {
		external, err := netip.ParseAddr(text)
		if err != nil || external.Is4In6() || external.Zone() != "" {
			n.add(wrong(annotation(annotationFloatingIPs), text, "must be an IP address"),
				"the floating address is left out")
			continue
		}
		i := slices.IndexFunc(own, func(ip netip.Addr) bool { return ip.Is4() == external.Is4() })
		if i < 0 {
			n.add(wrong(annotation(annotationFloatingIPs), text, "must be of a family of which the pod has an address"),
				"the floating address is left out")
			continue
		}
		nats = append(nats, model.IPNAT{InternalIP: own[i].String(), ExternalIP: external.String()})
	}
	return nats
}

// sources returns the networks from which the pod may send besides its own addresses.
func sources(n *notices, in *model.Pod) []string {
	var prefixes []string
	for _, text := range annotatedList(n, in, annotationSources) {
		p, err := network(annotation(annotationSources), text)
		if err != nil {
			n.add(err, "the prefix is left out")
			continue
		}
		prefixes = append(prefixes, p.String())
	}
	return prefixes
}

// longestList bounds an annotation with a list or with addresses, in bytes: about 90 networks.
const longestList = 4 << 10

// annotatedList parses an annotation with a JSON list of strings.
func annotatedList(n *notices, in *model.Pod, key string) []string {
	text := in.Annotations[key]
	if text == "" {
		return nil
	}
	if len(text) > longestList {
		n.add(wrong(annotation(key), text, "must have at most %d bytes", longestList), "the annotation is left out")
		return nil
	}
	var list []string
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		n.add(wrong(annotation(key), text, `must be a JSON list of texts, like ["10.0.0.1"]`),
			"the annotation is left out")
		return nil
	}
	return list
}

// annotation returns the name of an annotation's field in messages.
func annotation(key string) string { return "metadata.annotations[" + key + "]" }
