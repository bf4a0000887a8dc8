package table

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"

	"github.com/manxnet/manx/datastore/model"
)

// row is the input of a cell.
type row struct {
	object  *model.Object
	inherit string // the AS number of a node that has none of its own
}

// column is one column of a kind's table. Headings and values are calicoctl's, for calicoctl's kinds.
type column struct {
	heading string
	show    in
	cell    func(row) string
}

// in selects the tables that have the column.
type in int

const (
	both in = iota
	onlyTable
	onlyWide
)

var nameColumn = column{"NAME", both, func(r row) string { return r.object.Key.Name }}

// of returns the function of a cell of the typed value; the cell is empty for an object that could not be decoded.
func of[T any](f func(*T) string) func(row) string {
	return func(r row) string {
		if v, ok := r.object.Value.(*T); ok && v != nil {
			return f(v)
		}
		return ""
	}
}

// columns returns the columns of a kind. A kind without columns has its name.
func columns(kind model.Kind) []column {
	switch kind {
	case model.KindNode:
		return nodeColumns
	case model.KindIPPool:
		return poolColumns
	case model.KindIPReservation:
		return []column{nameColumn,
			{"CIDRS", onlyWide, of(func(v *v3.IPReservation) string {
				return strings.Join(v.Spec.ReservedCIDRs, ",")
			})}}
	case model.KindBGPConfiguration:
		return bgpConfigurationColumns
	case model.KindBGPPeer:
		return peerColumns
	case model.KindBGPFilter:
		return []column{nameColumn, rulesColumn("EXPORTV4", func(s *model.BGPFilterSpec) []model.BGPFilterRule {
			return s.ExportV4
		}),
			rulesColumn("IMPORTV4", func(s *model.BGPFilterSpec) []model.BGPFilterRule { return s.ImportV4 }),
			rulesColumn("EXPORTV6", func(s *model.BGPFilterSpec) []model.BGPFilterRule { return s.ExportV6 }),
			rulesColumn("IMPORTV6", func(s *model.BGPFilterSpec) []model.BGPFilterRule { return s.ImportV6 })}
	case model.KindClusterInformation:
		return clusterColumns
	case model.KindIPAMConfiguration:
		return ipamConfigurationColumns
	case model.KindProfile:
		return []column{nameColumn,
			{"LABELS", onlyWide, of(func(v *v3.Profile) string { return labelText(v.Spec.LabelsToApply) })}}
	case model.KindTier:
		return []column{nameColumn, {"ORDER", both, of(func(v *model.Tier) string { return order(v.Spec.Order) })}}
	case model.KindWorkloadEndpoint:
		return endpointColumns
	case model.KindCalicoNodeStatus:
		return []column{nameColumn,
			{"NODE", both, of(func(v *v3.CalicoNodeStatus) string { return v.Spec.Node })},
			{"CLASSES", onlyWide, of(func(v *v3.CalicoNodeStatus) string { return joined(v.Spec.Classes) })}}
	case model.KindNetworkPolicy:
		return networkPolicyColumns
	case model.KindGlobalNetworkPolicy:
		return globalNetworkPolicyColumns
	case model.KindStagedNetworkPolicy:
		return stagedNetworkPolicyColumns
	case model.KindStagedGlobalNetworkPolicy:
		return stagedGlobalNetworkPolicyColumns
	case model.KindStagedKubernetesNetworkPolicy:
		return stagedKubernetesNetworkPolicyColumns
	case model.KindNetworkSet:
		return networkSetColumns
	case model.KindGlobalNetworkSet:
		return globalNetworkSetColumns
	case model.KindHostEndpoint:
		return hostEndpointColumns
	case model.KindIPAMBlock:
		return blockColumns
	case model.KindBlockAffinity:
		return affinityColumns
	case model.KindIPAMHandle:
		return handleColumns
	case model.KindIPAMConfig:
		return ipamConfigColumns
	}
	return []column{nameColumn}
}

var nodeColumns = []column{
	nameColumn,
	{"ASN", onlyWide, nodeAS},
	{"IPV4", onlyWide, of(func(v *model.Node) string {
		if v.Spec.BGP == nil {
			return ""
		}
		return v.Spec.BGP.IPv4Address
	})},
	{"IPV6", onlyWide, of(func(v *model.Node) string {
		if v.Spec.BGP == nil {
			return ""
		}
		return v.Spec.BGP.IPv6Address
	})},
}

// nodeAS puts an inherited AS number in parentheses. A node without BGP has none.
func nodeAS(r row) string {
	v, ok := r.object.Value.(*model.Node)
	switch {
	case !ok || v.Spec.BGP == nil:
		return ""
	case v.Spec.BGP.ASNumber == nil:
		return "(" + r.inherit + ")"
	}
	return strconv.FormatUint(uint64(*v.Spec.BGP.ASNumber), 10)
}

var poolColumns = []column{
	nameColumn,
	{"CIDR", both, of(func(v *model.IPPool) string { return v.Spec.CIDR })},
	{"NAT", onlyWide, of(func(v *model.IPPool) string { return strconv.FormatBool(v.Spec.NATOutgoing) })},
	{"IPIPMODE", onlyWide, of(func(v *model.IPPool) string { return string(v.Spec.IPIPMode) })},
	{"VXLANMODE", onlyWide, of(func(v *model.IPPool) string { return string(v.Spec.VXLANMode) })},
	{"DISABLED", onlyWide, of(func(v *model.IPPool) string { return strconv.FormatBool(v.Spec.Disabled) })},
	{"DISABLEBGPEXPORT", onlyWide,
		of(func(v *model.IPPool) string { return strconv.FormatBool(v.Spec.DisableBGPExport) })},
	{"SELECTOR", both, of(func(v *model.IPPool) string { return v.Spec.NodeSelector })},
	{"ASSIGNMENTMODE", onlyWide, of(func(v *model.IPPool) string { return orDash(v.Spec.AssignmentMode) })},
}

var bgpConfigurationColumns = []column{
	nameColumn,
	{"LOGSEVERITY", both, of(func(v *model.BGPConfiguration) string { return v.Spec.LogSeverityScreen })},
	{"MESHENABLED", both, of(func(v *model.BGPConfiguration) string { return orDash(v.Spec.NodeToNodeMeshEnabled) })},
	{"ASNUMBER", both, of(func(v *model.BGPConfiguration) string { return orDash(v.Spec.ASNumber) })},
}

var peerColumns = []column{
	nameColumn,
	{"PEERIP", both, of(func(v *model.BGPPeer) string { return v.Spec.PeerIP })},
	{"NODE", both, of(func(v *model.BGPPeer) string {
		switch {
		case v.Spec.Node != "":
			return v.Spec.Node
		case v.Spec.NodeSelector != "":
			return v.Spec.NodeSelector
		}
		return "(global)"
	})},
	{"ASN", both, of(func(v *model.BGPPeer) string { return strconv.FormatUint(uint64(v.Spec.ASNumber), 10) })},
}

// rulesColumn counts the rules of one list of a filter.
func rulesColumn(heading string, list func(*model.BGPFilterSpec) []model.BGPFilterRule) column {
	return column{heading, both, of(func(v *model.BGPFilter) string { return strconv.Itoa(len(list(&v.Spec))) })}
}

var clusterColumns = []column{
	nameColumn,
	{"CLUSTERGUID", both, of(func(v *v3.ClusterInformation) string { return v.Spec.ClusterGUID })},
	{"CLUSTERTYPE", both, of(func(v *v3.ClusterInformation) string { return v.Spec.ClusterType })},
	{"CALICOVERSION", both, of(func(v *v3.ClusterInformation) string { return v.Spec.CalicoVersion })},
	{"DATASTOREREADY", both, of(func(v *v3.ClusterInformation) string { return orDash(v.Spec.DatastoreReady) })},
}

var endpointColumns = []column{
	{"NAME", onlyWide, func(r row) string { return r.object.Key.Name }},
	{"WORKLOAD", both, of(func(v *model.WorkloadEndpoint) string {
		if v.Spec.Pod != "" {
			return v.Spec.Pod
		}
		return v.Spec.Workload
	})},
	{"NODE", both, of(func(v *model.WorkloadEndpoint) string { return v.Spec.Node })},
	{"NETWORKS", both, of(func(v *model.WorkloadEndpoint) string { return strings.Join(v.Spec.IPNetworks, ",") })},
	{"INTERFACE", both, of(func(v *model.WorkloadEndpoint) string { return v.Spec.InterfaceName })},
	{"PROFILES", onlyWide, of(func(v *model.WorkloadEndpoint) string { return strings.Join(v.Spec.Profiles, ",") })},
	{"NATS", onlyWide, of(func(v *model.WorkloadEndpoint) string {
		var nats []string
		for _, n := range v.Spec.IPNATs {
			nats = append(nats, n.ExternalIP+"->"+n.InternalIP)
		}
		return strings.Join(nats, ",")
	})},
}

// orDash formats the target of a pointer, "-" for nil.
func orDash[T any](p *T) string {
	if p == nil {
		return "-"
	}
	return fmt.Sprint(*p)
}

// joined joins words with commas.
func joined[T ~string](words []T) string {
	out := make([]string, len(words))
	for i, w := range words {
		out[i] = string(w)
	}
	return strings.Join(out, ",")
}

func labelText(labels map[string]string) string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		out = append(out, k+"="+labels[k])
	}
	return strings.Join(out, ",")
}

// order formats a tier's order as calicoctl does: short, with an exponent from a million on. A tier without one is
// last.
func order(o *float64) string {
	if o == nil {
		return "<none>"
	}
	if *o >= 1e6 || *o <= -1e6 {
		return strconv.FormatFloat(*o, 'g', -1, 64)
	}
	return strconv.FormatFloat(*o, 'f', -1, 64)
}
