package model

import (
	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	"github.com/projectcalico/api/pkg/lib/numorstring"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

// UsesFloatingIPs reports whether workloads are reachable by floating addresses.
func (s *FelixConfigurationSpec) UsesFloatingIPs() bool {
	return s.FloatingIPs != nil && *s.FloatingIPs == v3.FloatingIPsEnabled
}
