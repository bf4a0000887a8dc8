package model

import (
	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// KubeControllersConfiguration has the settings of the cluster's controllers, in one object: Calico's kube-controllers,
// or the manxd that runs them.
type KubeControllersConfiguration struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              KubeControllersSpec   `json:"spec,omitempty"`
	Status            KubeControllersStatus `json:"status"`
}

// KubeControllersSpec extends the public API module's type by the fields that Calico has gained since its last release.
type KubeControllersSpec struct {
	LogSeverityScreen      string           `json:"logSeverityScreen,omitempty"`
	HealthChecks           string           `json:"healthChecks,omitempty"`
	EtcdV3CompactionPeriod *metav1.Duration `json:"etcdV3CompactionPeriod,omitempty"`
	PrometheusMetricsPort  *int             `json:"prometheusMetricsPort,omitempty"`
	Controllers            KubeControllers  `json:"controllers"`
	DebugProfilePort       *int32           `json:"debugProfilePort,omitempty"`
}

// KubeControllers has a section for each controller. One without a section does not run.
type KubeControllers struct {
	Node             *NodeController                      `json:"node,omitempty"`
	Policy           *v3.PolicyControllerConfig           `json:"policy,omitempty"`
	WorkloadEndpoint *v3.WorkloadEndpointControllerConfig `json:"workloadEndpoint,omitempty"`
	ServiceAccount   *v3.ServiceAccountControllerConfig   `json:"serviceAccount,omitempty"`
	Namespace        *v3.NamespaceControllerConfig        `json:"namespace,omitempty"`
	LoadBalancer     *v3.LoadBalancerControllerConfig     `json:"loadBalancer,omitempty"`
	Migration        *MigrationController                 `json:"migration,omitempty"`
}

// NodeController is the controller that follows Kubernetes' nodes.
type NodeController struct {
	ReconcilerPeriod *metav1.Duration   `json:"reconcilerPeriod,omitempty"`
	SyncLabels       string             `json:"syncLabels,omitempty"`
	HostEndpoint     *AutoHostEndpoints `json:"hostEndpoint,omitempty"`
	LeakGracePeriod  *metav1.Duration   `json:"leakGracePeriod,omitempty"`
}

// AutoHostEndpoints configures the HostEndpoints of the node controller.
type AutoHostEndpoints struct {
	AutoCreate                string                 `json:"autoCreate,omitempty"`
	CreateDefaultHostEndpoint string                 `json:"createDefaultHostEndpoint,omitempty"`
	Templates                 []HostEndpointTemplate `json:"templates,omitempty"`
}

// HostEndpointTemplate creates HostEndpoints for the interfaces with such addresses or names on the selected nodes.
type HostEndpointTemplate struct {
	GenerateName     string            `json:"generateName,omitempty"`
	InterfaceCIDRs   []string          `json:"interfaceCIDRs,omitempty"`
	InterfacePattern string            `json:"interfacePattern,omitempty"`
	Labels           map[string]string `json:"labels,omitempty"`
	Annotations      map[string]string `json:"annotations,omitempty"`
	NodeSelector     string            `json:"nodeSelector,omitempty"`
}

// MigrationController renames policies that are stored under their old names.
type MigrationController struct {
	PolicyNameMigrator string `json:"policyNameMigrator,omitempty"`
}

// KubeControllersStatus is the controllers' report of their state.
type KubeControllersStatus struct {
	RunningConfig   *KubeControllersSpec `json:"runningConfig,omitempty"`
	EnvironmentVars map[string]string    `json:"environmentVars,omitempty"`
}
