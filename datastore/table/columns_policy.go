package table

import (
	"strconv"
	"strings"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/manxnet/manx/datastore/model"
)

// policyColumns returns the columns of a kind of tiered policy.
func policyColumns[T any](order func(*T) *float64, selector func(*T) string) []column {
	return []column{
		nameColumn,
		{"TIER", both, func(r row) string { return model.PolicyTier(r.object.Value) }},
		{"ORDER", onlyWide, of(func(v *T) string { return policyOrder(order(v)) })},
		{"SELECTOR", onlyWide, of(selector)},
	}
}

var (
	networkPolicyColumns = policyColumns(
		func(v *v3.NetworkPolicy) *float64 { return v.Spec.Order },
		func(v *v3.NetworkPolicy) string { return v.Spec.Selector })
	globalNetworkPolicyColumns = policyColumns(
		func(v *v3.GlobalNetworkPolicy) *float64 { return v.Spec.Order },
		func(v *v3.GlobalNetworkPolicy) string { return v.Spec.Selector })
	stagedNetworkPolicyColumns = policyColumns(
		func(v *v3.StagedNetworkPolicy) *float64 { return v.Spec.Order },
		func(v *v3.StagedNetworkPolicy) string { return v.Spec.Selector })
	stagedGlobalNetworkPolicyColumns = policyColumns(
		func(v *v3.StagedGlobalNetworkPolicy) *float64 { return v.Spec.Order },
		func(v *v3.StagedGlobalNetworkPolicy) string { return v.Spec.Selector })
	stagedKubernetesNetworkPolicyColumns = []column{
		nameColumn,
		{"PODSELECTOR", onlyWide, of(func(v *v3.StagedKubernetesNetworkPolicy) string {
			return metav1.FormatLabelSelector(&v.Spec.PodSelector)
		})},
	}
)

// policyOrder formats an order as calicoctl does in lists of policies.
func policyOrder(o *float64) string {
	if o == nil {
		return "<nil>"
	}
	return order(o)
}

var networkSetColumns = []column{
	nameColumn,
	{"NETS", onlyWide, of(func(v *v3.NetworkSet) string { return netsText(v.Spec.Nets) })},
}

var globalNetworkSetColumns = []column{
	nameColumn,
	{"NETS", onlyWide, of(func(v *v3.GlobalNetworkSet) string { return netsText(v.Spec.Nets) })},
}

// netsWidth bounds the nets of a set in a table: sets may have thousands.
const netsWidth = 80

// netsText lists as many nets as fit, and the number of the others.
func netsText(nets []string) string {
	text := strings.Join(nets, ",")
	if len(text) <= netsWidth {
		return text
	}
	shown, width := 0, 0
	for _, n := range nets {
		if width += len(n) + 1; width > netsWidth && shown > 0 {
			break
		}
		shown++
	}
	if shown == len(nets) {
		return text
	}
	return strings.Join(nets[:shown], ",") + ",... (" + strconv.Itoa(len(nets)-shown) + " more)"
}

var hostEndpointColumns = []column{
	nameColumn,
	{"NODE", both, of(func(v *v3.HostEndpoint) string { return v.Spec.Node })},
	{"INTERFACE", onlyWide, of(func(v *v3.HostEndpoint) string { return v.Spec.InterfaceName })},
	{"IPS", onlyWide, of(func(v *v3.HostEndpoint) string { return strings.Join(v.Spec.ExpectedIPs, ",") })},
	{"PROFILES", onlyWide, of(func(v *v3.HostEndpoint) string { return strings.Join(v.Spec.Profiles, ",") })},
}
