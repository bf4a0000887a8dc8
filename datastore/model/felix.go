package model

import (
	"iter"
	"strings"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	"github.com/projectcalico/api/pkg/lib/numorstring"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/manxnet/manx/datastore/selector"
)

// FelixConfiguration has the settings of the dataplane: of the cluster ("default"), of nodes that match its
// nodeSelector, or of one node ("node.NAME").
type FelixConfiguration struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              FelixConfigurationSpec `json:"spec,omitempty"`
}

// FelixConfigurationSpec extends the public API module's type by the fields that Calico has gained since its last
// release.
type FelixConfigurationSpec struct {
	v3.FelixConfigurationSpec `json:",inline"`

	NodeSelector                             string            `json:"nodeSelector,omitempty"`
	LogActionRateLimit                       *string           `json:"logActionRateLimit,omitempty"`
	LogActionRateLimitBurst                  *int              `json:"logActionRateLimitBurst,omitempty"`
	PrometheusMetricsCAFile                  *string           `json:"prometheusMetricsCAFile,omitempty"`
	PrometheusMetricsCertFile                *string           `json:"prometheusMetricsCertFile,omitempty"`
	PrometheusMetricsKeyFile                 *string           `json:"prometheusMetricsKeyFile,omitempty"`
	PrometheusMetricsClientAuth              *string           `json:"prometheusMetricsClientAuth,omitempty"`
	NFTablesFlowTableOffload                 *string           `json:"nftablesFlowTableOffload,omitempty"`
	NFTablesFlowTableDataIfacePattern        *string           `json:"nftablesFlowTableDataIfacePattern,omitempty"`
	BPFOverlayHostSourceIP                   *string           `json:"bpfOverlayHostSourceIP,omitempty"`
	BPFJITHardening                          *string           `json:"bpfJITHardening,omitempty"`
	BPFKubeProxyHealthzPort                  *int              `json:"bpfKubeProxyHealthzPort,omitempty"`
	BPFIPFragTimeout                         *metav1.Duration  `json:"bpfIPFragTimeout,omitempty"`
	BPFIPFragmentReassemblyEnabled           *bool             `json:"bpfIPFragmentReassemblyEnabled,omitempty"`
	BPFMaglevMaxServices                     *int              `json:"bpfMaglevMaxServices,omitempty"`
	BPFMaglevMaxEndpointsPerService          *int              `json:"bpfMaglevMaxEndpointsPerService,omitempty"`
	IstioAmbientMode                         *string           `json:"istioAmbientMode,omitempty"`
	IstioDSCPMark                            *numorstring.DSCP `json:"istioDSCPMark,omitempty"`
	IPv4NormalRoutePriority                  *int              `json:"ipv4NormalRoutePriority,omitempty"`
	IPv4ElevatedRoutePriority                *int              `json:"ipv4ElevatedRoutePriority,omitempty"`
	IPv6NormalRoutePriority                  *int              `json:"ipv6NormalRoutePriority,omitempty"`
	IPv6ElevatedRoutePriority                *int              `json:"ipv6ElevatedRoutePriority,omitempty"`
	LiveMigrationRouteConvergenceTime        *metav1.Duration  `json:"liveMigrationRouteConvergenceTime,omitempty"`
	LocalSubnetL2Reachability                *string           `json:"localSubnetL2Reachability,omitempty"`
	LocalSubnetL2ReachabilityRefreshInterval *metav1.Duration  `json:"localSubnetL2ReachabilityRefreshInterval,omitempty"`
}

// FelixConfigurations visits the settings for a node, by name: those of the cluster ("default"), then those whose
// nodeSelector matches the node's labels (the oldest of several, as in Calico), then the node's own ("node.NAME").
// Later settings take priority.
func FelixConfigurations(r Reader, node string) iter.Seq2[string, *FelixConfiguration] {
	return func(yield func(string, *FelixConfiguration) bool) {
		for _, name := range []string{"default", selectedFelixConfiguration(r, node), "node." + node} {
			f := Get[FelixConfiguration](r, ResourceKey(KindFelixConfiguration, name))
			if f != nil && !yield(name, f) {
				return
			}
		}
	}
}

// ConcernsFelix reports whether a FelixConfiguration of that name can apply to a node.
func ConcernsFelix(name, node string) bool {
	return !strings.HasPrefix(name, "node.") || name == "node."+node
}

// selectedFelixConfiguration returns the name of the configuration that selects a node; empty for none.
func selectedFelixConfiguration(r Reader, node string) string {
	var best *FelixConfiguration
	found := ""
	for k, f := range All[FelixConfiguration](r, KindFelixConfiguration) {
		if f.Spec.NodeSelector == "" || k.Name == "default" || strings.HasPrefix(k.Name, "node.") {
			continue
		}
		var labels map[string]string
		if n := Get[Node](r, ResourceKey(KindNode, node)); n != nil {
			labels = n.Labels
		}
		s, err := selector.Parse(f.Spec.NodeSelector)
		if err != nil || !s.Matches(labels) {
			continue
		}
		if best == nil || f.CreationTimestamp.Before(&best.CreationTimestamp) ||
			f.CreationTimestamp.Equal(&best.CreationTimestamp) && k.Name < found {
			best, found = f, k.Name
		}
	}
	return found
}
