package fill

import (
	"fmt"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Cluster is the size of a cluster. Its pods are those of Deployments:
//
//   - Namespace n belongs to team n modulo 30 and is one of prod (half of them), test and dev. It has the service
//     accounts default and app, and ten Deployments app-0 to app-9: app-0 is a front end, app-9 a database, the rest is
//     in between.
//   - Pod p is in namespace p modulo Namespaces, and the pods of a Deployment are on as many nodes as it has pods. Pod
//     p is on node 1 + p modulo (Nodes - 1), but for the first Local pods, which are on Measured. So 30 pods of one
//     node are in 30 namespaces, as in a cluster whose scheduler spreads.
//   - Policy p is in namespace p modulo Namespaces. Of each four of a namespace the first isolates all its pods and
//     lets in those of the namespace; the second lets front ends reach one Deployment by port; the third lets in
//     metrics scrapers from namespaces of another team; and the fourth bounds the destinations of one Deployment: DNS,
//     an external network, and another team's Deployment.
//   - Service s is in namespace s modulo Namespaces, selects one Deployment, and has one EndpointSlice with its pods.
//
// All its addresses are out of pool, in blocks of /26 that belong to the nodes of the pods.
type Cluster struct {
	Nodes, Pods, Namespaces, Policies, Services, Local int
	// Plain pods have only a container with an image and ports, like the pods of many tests. The others have the fields
	// of Deployments of real programs: probes, limits, variables, volumes.
	Plain bool
}

// Measured is the node that a benchmark measures. It is one of Nodes.
const Measured = "node-0"

// pool is the IP pool of all pods.
var pool = netip.MustParsePrefix("10.64.0.0/10")

const (
	blockBits   = 26
	deployments = 10 // of each namespace
	hash        = "7d9f8b6c5d"
)

// nodeName is the name of node i.
func nodeName(i int) string { return fmt.Sprint("node-", i) }

// nodeAddress is the address of node i.
func nodeAddress(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{172, 16 + byte(i>>16), byte(i >> 8), byte(i)})
}

func (c Cluster) namespace(i int) string { return fmt.Sprint("ns-", i%c.Namespaces) }

// deployment returns the number of pod i's Deployment.
func (c Cluster) deployment(i int) int { return i / c.Namespaces % deployments }

// place returns the node of pod i, and the number of the pod on its node.
func (c Cluster) place(i int) (node, nth int) {
	if i < c.Local {
		return 0, i
	}
	return 1 + i%(c.Nodes-1), i / (c.Nodes - 1)
}

// blockOf returns the nth block of a node.
func (c Cluster) blockOf(node, nth int) netip.Prefix {
	base := pool.Addr().As4()
	n := node + nth*c.Nodes // of 64 addresses
	base[1] += byte(n >> 10)
	base[2], base[3] = byte(n>>2), byte(n<<6)
	return netip.PrefixFrom(netip.AddrFrom4(base), blockBits)
}

// address returns the address of pod i.
func (c Cluster) address(i int) netip.Addr {
	node, nth := c.place(i)
	a := c.blockOf(node, nth>>6).Addr().As4()
	a[3] |= byte(nth & 63)
	return netip.AddrFrom4(a)
}

// PodName returns the namespace and the name of pod i. i may exceed Pods: such pods come later.
func (c Cluster) PodName(i int) (namespace, name string) {
	return c.namespace(i), fmt.Sprintf("app-%d-%s-%06x", c.deployment(i), hash, i)
}

func container(i int) string { return strings.Repeat("8c1f0a5e9d3b", 5)[:58] + fmt.Sprintf("%06x", i) }

func (c Cluster) makeNamespace(i int, o *corev1.Namespace) {
	o.Name = c.namespace(i)
	o.Labels = map[string]string{"kubernetes.io/metadata.name": o.Name, "team": fmt.Sprint("team-", i%30),
		"env": []string{"prod", "prod", "test", "dev"}[i%4]}
}

func (c Cluster) makeAccount(i int, o *corev1.ServiceAccount) {
	o.Namespace, o.Name = c.namespace(i), []string{"default", "app"}[i/c.Namespaces]
}

// tier is the label with the purpose of a Deployment.
func tier(deployment int) string {
	switch deployment {
	case 0:
		return "frontend"
	case 9:
		return "database"
	}
	return "backend"
}

func app(deployment int) string { return fmt.Sprint("app-", deployment) }

// makePod makes a copy of a pod the pod i.
func (c Cluster) makePod(i int, o *corev1.Pod) {
	node, _ := c.place(i)
	d, ip := c.deployment(i), c.address(i).String()
	o.Namespace, o.Name = c.PodName(i)
	o.GenerateName = app(d) + "-" + hash + "-"
	o.Labels = map[string]string{"app": app(d), "app.kubernetes.io/name": app(d), "tier": tier(d), "version": "v1",
		"pod-template-hash": hash}
	o.OwnerReferences[0].Name = app(d) + "-" + hash
	o.Spec.NodeName = nodeName(node)
	o.Annotations["cni.projectcalico.org/podIP"], o.Annotations["cni.projectcalico.org/podIPs"] = ip+"/32", ip+"/32"
	o.Annotations["cni.projectcalico.org/containerID"] = container(i)
	o.Status.HostIP = nodeAddress(node).String()
	o.Status.HostIPs = []corev1.HostIP{{IP: o.Status.HostIP}}
	o.Status.PodIP, o.Status.PodIPs = ip, []corev1.PodIP{{IP: ip}}
	o.Status.ContainerStatuses[0].ContainerID = "containerd://" + container(i)
}

func (c Cluster) makeNode(i int, o *corev1.Node) {
	o.Name = nodeName(i)
	o.Labels["kubernetes.io/hostname"], o.Labels["topology.kubernetes.io/zone"] = o.Name, fmt.Sprint("zone-", i%3)
	o.Labels["rack"] = fmt.Sprint("rack-", i/40)
	o.Annotations["projectcalico.org/IPv4Address"] = nodeAddress(i).String() + "/12"
	if i == 0 {
		delete(o.Annotations, "projectcalico.org/IPv4Address") // Measured finds out itself
	}
	for j := range o.Status.Addresses {
		o.Status.Addresses[j].Address = o.Name
		if o.Status.Addresses[j].Type == corev1.NodeInternalIP {
			o.Status.Addresses[j].Address = nodeAddress(i).String()
		}
	}
	o.Status.NodeInfo.MachineID = fmt.Sprintf("%032x", i)
	o.Status.NodeInfo.SystemUUID, o.Status.NodeInfo.BootID = o.Status.NodeInfo.MachineID, o.Status.NodeInfo.MachineID
}

func (c Cluster) makePolicy(i int, o *networkingv1.NetworkPolicy) {
	nth := i / c.Namespaces
	o.Namespace, o.Name = c.namespace(i), fmt.Sprint("policy-", nth)
	apps := func(d int) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchLabels: map[string]string{"app": app(d % deployments)}}
	}
	port := func(p corev1.Protocol, n int) networkingv1.NetworkPolicyPort {
		at := intstr.FromInt(n)
		return networkingv1.NetworkPolicyPort{Protocol: &p, Port: &at}
	}
	in := func(from networkingv1.NetworkPolicyPeer, ports ...networkingv1.NetworkPolicyPort) {
		o.Spec.PolicyTypes = []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}
		o.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{
			{From: []networkingv1.NetworkPolicyPeer{from}, Ports: ports}}
	}
	team := func(n int) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchLabels: map[string]string{"team": fmt.Sprint("team-", n%30)}}
	}
	o.Spec = networkingv1.NetworkPolicySpec{PodSelector: *apps(nth/4 + 1 + i%7)}
	switch nth % 4 {
	case 0:
		o.Spec.PodSelector = metav1.LabelSelector{}
		in(networkingv1.NetworkPolicyPeer{PodSelector: &metav1.LabelSelector{}})
	case 1:
		front := &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
			{Key: "tier", Operator: metav1.LabelSelectorOpIn, Values: []string{"frontend", "edge"}}}}
		in(networkingv1.NetworkPolicyPeer{PodSelector: front}, port(corev1.ProtocolTCP, 8080),
			port(corev1.ProtocolTCP, 8443))
	case 2:
		in(networkingv1.NetworkPolicyPeer{PodSelector: apps(5), NamespaceSelector: team(i + 7)},
			port(corev1.ProtocolTCP, 9090))
	default:
		o.Spec.PolicyTypes = []networkingv1.PolicyType{networkingv1.PolicyTypeEgress}
		o.Spec.Egress = []networkingv1.NetworkPolicyEgressRule{
			{To: []networkingv1.NetworkPolicyPeer{{NamespaceSelector: &metav1.LabelSelector{}}},
				Ports: []networkingv1.NetworkPolicyPort{port(corev1.ProtocolUDP, 53), port(corev1.ProtocolTCP, 53)}},
			{To: []networkingv1.NetworkPolicyPeer{
				{IPBlock: &networkingv1.IPBlock{CIDR: fmt.Sprintf("192.168.%d.0/24", i%250)}}}},
			{To: []networkingv1.NetworkPolicyPeer{{PodSelector: apps(i), NamespaceSelector: team(i + 3)}},
				Ports: []networkingv1.NetworkPolicyPort{port(corev1.ProtocolTCP, 8080)}},
		}
	}
}

func (c Cluster) makeService(i int, o *corev1.Service) {
	d := i / c.Namespaces % deployments
	o.Namespace, o.Name = c.namespace(i), fmt.Sprintf("svc-%d", i/c.Namespaces)
	o.Labels, o.Spec.Selector = map[string]string{"app": app(d)}, map[string]string{"app": app(d)}
	o.Spec.ClusterIP = netip.AddrFrom4([4]byte{10, 96, byte((i + 256) >> 8), byte(i)}).String()
	o.Spec.ClusterIPs = []string{o.Spec.ClusterIP}
}

func (c Cluster) makeSlice(i int, o *discoveryv1.EndpointSlice) {
	d := i / c.Namespaces % deployments
	service := fmt.Sprintf("svc-%d", i/c.Namespaces)
	o.Namespace, o.Name, o.GenerateName = c.namespace(i), service+"-x7k2p", service+"-"
	o.Labels = map[string]string{"app": app(d), discoveryv1.LabelServiceName: service,
		discoveryv1.LabelManagedBy: "endpointslice-controller.k8s.io"}
	o.OwnerReferences[0].Name = service
	endpoint := o.Endpoints[0]
	o.Endpoints = nil
	for p := d*c.Namespaces + i%c.Namespaces; p < c.Pods && len(o.Endpoints) < 100; p += c.Namespaces * deployments {
		e := *endpoint.DeepCopy()
		node, _ := c.place(p)
		name := nodeName(node)
		e.Addresses, e.NodeName, e.TargetRef.Namespace = []string{c.address(p).String()}, &name, o.Namespace
		_, e.TargetRef.Name = c.PodName(p)
		o.Endpoints = append(o.Endpoints, e)
	}
}
