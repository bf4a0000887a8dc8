package main

import (
	"fmt"
	"strings"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// category selects the objects of all kinds at once: `kubectl get calico -A`.
const category = "calico"

// column is a column of `kubectl get`; the type is that of the field. A list is shown as JSON.
type column struct {
	name, path string // path begins at the object, without a dot
	wide       bool   // only with -o wide
}

// columns are of each kind, beside the name and the age.
var columns = map[string][]column{
	"BGPConfiguration": {{"AS", "spec.asNumber", false}, {"Mesh", "spec.nodeToNodeMeshEnabled", false},
		{"Port", "spec.listenPort", false}, {"Bind", "spec.bindMode", true},
		{"Mesh Restart Time", "spec.nodeMeshMaxRestartTime", true}},
	"BGPPeer": {{"Node", "spec.node", false}, {"Node Selector", "spec.nodeSelector", false},
		{"Peer IP", "spec.peerIP", false}, {"Peer Selector", "spec.peerSelector", false},
		{"AS", "spec.asNumber", false}, {"Local AS", "spec.localASNumber", true},
		{"Filters", "spec.filters", true}, {"Password", "spec.password.secretKeyRef.name", true}},
	"BlockAffinity": {{"Node", "spec.node", false}, {"CIDR", "spec.cidr", false}, {"State", "spec.state", false},
		{"Type", "spec.type", true}},
	"CalicoNodeStatus": {{"Node", "spec.node", false}, {"Up v4", "status.bgp.numberEstablishedV4", false},
		{"Down v4", "status.bgp.numberNotEstablishedV4", false}, {"Up v6", "status.bgp.numberEstablishedV6", false},
		{"Down v6", "status.bgp.numberNotEstablishedV6", false}, {"Updated", "status.lastUpdated", false},
		{"Agent", "status.agent.birdV4.state", true}, {"Version", "status.agent.birdV4.version", true}},
	"ClusterInformation": {{"Version", "spec.calicoVersion", false}, {"Type", "spec.clusterType", false},
		{"Ready", "spec.datastoreReady", false}, {"GUID", "spec.clusterGUID", true}},
	"FelixConfiguration": {{"Log", "spec.logSeverityScreen", false},
		{"Endpoint To Host", "spec.defaultEndpointToHostAction", false}, {"IPIP", "spec.ipipEnabled", true},
		{"WireGuard", "spec.wireguardEnabled", true}},
	"GlobalNetworkPolicy":       ordered("Selector", "spec.selector"),
	"NetworkPolicy":             ordered("Selector", "spec.selector"),
	"StagedGlobalNetworkPolicy": append(ordered("Selector", "spec.selector"), stagedAction),
	"StagedNetworkPolicy":       append(ordered("Selector", "spec.selector"), stagedAction),
	"StagedKubernetesNetworkPolicy": {{"Pod Selector", "spec.podSelector", true}, {"Types", "spec.policyTypes", true},
		stagedAction},
	"GlobalNetworkSet": {{"Nets", "spec.nets", false}},
	"NetworkSet":       {{"Nets", "spec.nets", false}},
	"HostEndpoint": {{"Node", "spec.node", false}, {"Interface", "spec.interfaceName", false},
		{"IPs", "spec.expectedIPs", false}, {"Profiles", "spec.profiles", true}},
	"IPAMBlock": {{"CIDR", "spec.cidr", false}, {"Affinity", "spec.affinity", false}},
	"IPAMConfiguration": {{"Strict Affinity", "spec.strictAffinity", false},
		{"Auto Blocks", "spec.autoAllocateBlocks", false}, {"Max Blocks", "spec.maxBlocksPerHost", false},
		{"Cooldown", "spec.ipCooldownSeconds", true}},
	"IPAMHandle": {{"Blocks", "spec.block", false}},
	"IPPool": {{"CIDR", "spec.cidr", false}, {"IPIP", "spec.ipipMode", false}, {"VXLAN", "spec.vxlanMode", false},
		{"NAT", "spec.natOutgoing", false}, {"Block Size", "spec.blockSize", false},
		{"Disabled", "spec.disabled", false}, {"Uses", "spec.allowedUses", true},
		{"Node Selector", "spec.nodeSelector", true}, {"Assignment", "spec.assignmentMode", true}},
	"IPReservation": {{"CIDRs", "spec.reservedCIDRs", false}},
	"KubeControllersConfiguration": {{"Log", "spec.logSeverityScreen", false},
		{"Host Endpoints", "spec.controllers.node.hostEndpoint.autoCreate", false},
		{"LoadBalancer IPs", "spec.controllers.loadBalancer.assignIPs", false}},
	"Tier": {{"Order", "spec.order", false}, {"Default Action", "spec.defaultAction", false}},
}

var stagedAction = column{"Staged Action", "spec.stagedAction", false}

// ordered are the columns of a policy with a tier and an order.
func ordered(name, selector string) []column {
	return []column{{"Tier", "spec.tier", false}, {"Order", "spec.order", false}, {name, selector, true},
		{"Types", "spec.types", true}}
}

// printerColumns returns the columns of a kind for the API server; an error names a column without a field.
func printerColumns(k kind, schema *apiextensions.JSONSchemaProps) ([]apiextensions.CustomResourceColumnDefinition,
	error) {
	of := columns[k.kind]
	if k.kind == "IPAMConfig" {
		of = columns["IPAMConfiguration"]
	}
	var list []apiextensions.CustomResourceColumnDefinition
	for _, c := range of {
		field := apiextensions.JSONSchemaProps{}
		if !at(schema, c.path, func(s *apiextensions.JSONSchemaProps) { field = *s }) {
			return nil, fmt.Errorf("the column %s is about %s, which it does not have", c.name, c.path)
		}
		d := apiextensions.CustomResourceColumnDefinition{Name: c.name, JSONPath: "." + c.path, Type: columnType(field)}
		if c.wide {
			d.Priority = 1
		}
		list = append(list, d)
	}
	return append(list, apiextensions.CustomResourceColumnDefinition{Name: "Age", Type: "date",
		JSONPath: ".metadata.creationTimestamp"}), nil
}

func columnType(s apiextensions.JSONSchemaProps) string {
	switch {
	case s.Format == "date-time":
		return "date"
	case strings.Contains("integer number boolean", s.Type) && s.Type != "":
		return s.Type
	}
	return "string" // also lists and objects, as JSON
}
