package model

import (
	"fmt"
	"maps"
	"strings"
)

// Labels that Calico sets on every WorkloadEndpoint, whatever the writer sets.
const (
	LabelNamespace      = "projectcalico.org/namespace"
	LabelOrchestrator   = "projectcalico.org/orchestrator"
	LabelServiceAccount = "projectcalico.org/serviceaccount"
)

// Prefixes of the labels that endpoints inherit from their namespace and service account.
const (
	NamespaceLabelPrefix      = "pcns."
	ServiceAccountLabelPrefix = "pcsa."
)

// InheritedLabel reports whether only a namespace or a service account can set a label.
func InheritedLabel(name string) bool {
	return strings.HasPrefix(name, NamespaceLabelPrefix) || strings.HasPrefix(name, ServiceAccountLabelPrefix)
}

// OwnLabels returns the labels of a workload that selectors see, without the inherited ones. It drops labels that look
// inherited, and takes the service account from the spec: otherwise the labels of a pod could pretend another namespace
// or account. Callers must not change the map.
func (w *CommonEndpoint) OwnLabels() map[string]string {
	account := w.ServiceAccountName
	pretends := false
	for name := range w.Labels {
		pretends = pretends || InheritedLabel(name)
	}
	if !pretends && (account == "" || w.Labels[LabelServiceAccount] == account) {
		return w.Labels
	}
	labels := make(map[string]string, len(w.Labels)+1)
	maps.Copy(labels, w.Labels)
	maps.DeleteFunc(labels, func(name, _ string) bool { return InheritedLabel(name) })
	if account != "" {
		labels[LabelServiceAccount] = account
	}
	return labels
}

// WorkloadEndpointIDs are the parts of a WorkloadEndpoint's name. The orchestrator determines which of Pod, ContainerID
// and Workload applies.
type WorkloadEndpointIDs struct {
	Node         string
	Orchestrator string
	Pod          string // orchestrator k8s
	ContainerID  string // orchestrator cni
	Workload     string // any other orchestrator but libnetwork
	Endpoint     string // the interface inside the workload, for instance eth0
}

// IDs returns the parts of the name that follow from the spec.
func (s WorkloadEndpointSpec) IDs() WorkloadEndpointIDs {
	return WorkloadEndpointIDs{
		Node: s.Node, Orchestrator: s.Orchestrator, Pod: s.Pod, ContainerID: s.ContainerID, Workload: s.Workload,
		Endpoint: s.Endpoint,
	}
}

// workload returns the part of the name that identifies the workload, and the field that it comes from.
func (i WorkloadEndpointIDs) workload() (value, field string) {
	switch i.Orchestrator {
	case "k8s":
		return i.Pod, "pod"
	case "cni":
		return i.ContainerID, "containerID"
	case "libnetwork":
		return "libnetwork", "workload"
	}
	return i.Workload, "workload"
}

// WorkloadEndpointName composes a name: NODE-ORCHESTRATOR-WORKLOAD-ENDPOINT, in which a dash inside a part is doubled.
// The error is a FieldError with the field of the spec that is missing or invalid in a name.
func WorkloadEndpointName(ids WorkloadEndpointIDs) (string, error) {
	workload, field := ids.workload()
	parts := []struct{ field, value string }{
		{"node", ids.Node}, {"orchestrator", ids.Orchestrator}, {field, workload}, {"endpoint", ids.Endpoint},
	}
	texts := make([]string, len(parts))
	for i, p := range parts {
		switch {
		case p.value == "":
			return "", FieldError{Field: "spec." + p.field, Value: "", Rule: "is required: it is a part of the name"}
		case strings.HasPrefix(p.value, "-") || strings.HasSuffix(p.value, "-"):
			return "", FieldError{Field: "spec." + p.field, Value: p.value,
				Rule: "cannot begin or end with a dash: it is a part of the name"}
		}
		texts[i] = strings.ReplaceAll(p.value, "-", "--")
	}
	return strings.Join(texts, "-"), nil
}

// ParseWorkloadEndpointName splits a name into its parts.
func ParseWorkloadEndpointName(name string) (WorkloadEndpointIDs, error) {
	parts := strings.Split(strings.ReplaceAll(name, "--", "\x00"), "-")
	for i, p := range parts {
		parts[i] = strings.ReplaceAll(p, "\x00", "-")
	}
	if len(parts) != 4 {
		return WorkloadEndpointIDs{}, fmt.Errorf("%q is not NODE-ORCHESTRATOR-WORKLOAD-ENDPOINT with doubled dashes "+
			"inside the parts", name)
	}
	ids := WorkloadEndpointIDs{Node: parts[0], Orchestrator: parts[1], Endpoint: parts[3]}
	switch ids.Orchestrator {
	case "k8s":
		ids.Pod = parts[2]
	case "cni":
		ids.ContainerID = parts[2]
	default:
		ids.Workload = parts[2]
	}
	if again, err := WorkloadEndpointName(ids); err != nil || again != name {
		return WorkloadEndpointIDs{}, fmt.Errorf("%q is not NODE-ORCHESTRATOR-WORKLOAD-ENDPOINT with doubled dashes "+
			"inside the parts", name)
	}
	return ids, nil
}
