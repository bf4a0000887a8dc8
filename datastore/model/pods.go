package model

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Namespace is a Kubernetes namespace: all pods in it inherit its labels.
type Namespace struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
}

// ServiceAccount is a Kubernetes service account: all pods that run as it inherit its labels.
type ServiceAccount struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
}

// Pod is a Kubernetes pod, with the fields from which a WorkloadEndpoint is derived.
type Pod struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              PodSpec   `json:"spec,omitempty"`
	Status            PodStatus `json:"status,omitempty"`
}

// PodSpec has the node of a pod and its ports.
type PodSpec struct {
	NodeName           string      `json:"nodeName,omitempty"`
	HostNetwork        bool        `json:"hostNetwork,omitempty"`
	ServiceAccountName string      `json:"serviceAccountName,omitempty"`
	Containers         []Container `json:"containers,omitempty"`
	InitContainers     []Container `json:"initContainers,omitempty"`
}

// Container is one container of a pod.
type Container struct {
	Name  string          `json:"name,omitempty"`
	Ports []ContainerPort `json:"ports,omitempty"`
}

// ContainerPort is one port of a container; Protocol empty is TCP.
type ContainerPort struct {
	Name          string `json:"name,omitempty"`
	HostPort      int32  `json:"hostPort,omitempty"`
	ContainerPort int32  `json:"containerPort,omitempty"`
	Protocol      string `json:"protocol,omitempty"`
	HostIP        string `json:"hostIP,omitempty"`
}

// PodStatus has the addresses of a pod and its phase.
type PodStatus struct {
	Phase  string  `json:"phase,omitempty"` // Pending, Running, Succeeded, Failed or Unknown
	PodIP  string  `json:"podIP,omitempty"`
	PodIPs []PodIP `json:"podIPs,omitempty"`
}

// PodIP is one address of a pod.
type PodIP struct {
	IP string `json:"ip,omitempty"`
}
