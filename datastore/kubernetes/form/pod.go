package form

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/manxnet/manx/datastore/conversion"
	"github.com/manxnet/manx/datastore/model"
)

// defaultPrefix is Calico's default prefix of interface names.
const defaultPrefix = "cali"

// Endpoint returns the WorkloadEndpoint of a pod: nil for a pod in the host's network or without a node, and for one
// with an invalid name, which a notice reports. A pod that is finished or has no address yet has an endpoint without
// addresses.
func Endpoint(p *corev1.Pod, c Config) (*model.Object, []conversion.Notice) {
	w, notices, err := conversion.Pod(pod(p), cmp.Or(c.InterfacePrefix, defaultPrefix))
	var problem model.FieldError
	if errors.As(err, &problem) {
		key := model.Key{Kind: model.KindPod, Namespace: p.Namespace, Name: p.Name}
		return nil, []conversion.Notice{{Key: key, Problem: problem, Effect: "the pod has no endpoint"}}
	}
	if w == nil {
		return nil, notices
	}
	key := model.Key{Kind: model.KindWorkloadEndpoint, Namespace: w.Namespace, Name: w.Name}
	return live(key, p.ResourceVersion, w), notices
}

// pod returns the relevant part of a pod.
func pod(p *corev1.Pod) *model.Pod {
	m := &model.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: p.Name, GenerateName: p.GenerateName, Namespace: p.Namespace, UID: p.UID,
			Labels: p.Labels, Annotations: p.Annotations, CreationTimestamp: p.CreationTimestamp,
			DeletionTimestamp: p.DeletionTimestamp,
		},
		Spec: model.PodSpec{
			NodeName: p.Spec.NodeName, HostNetwork: p.Spec.HostNetwork, ServiceAccountName: p.Spec.ServiceAccountName,
			Containers: containers(p.Spec.Containers), InitContainers: containers(p.Spec.InitContainers),
		},
		Status: model.PodStatus{Phase: string(p.Status.Phase), PodIP: p.Status.PodIP},
	}
	for _, ip := range p.Status.PodIPs {
		m.Status.PodIPs = append(m.Status.PodIPs, model.PodIP{IP: ip.IP})
	}
	return m
}

// containers returns the ports of containers, nil if none has any.
func containers(in []corev1.Container) []model.Container {
	var list []model.Container
	for i, c := range in {
		if len(c.Ports) == 0 {
			continue
		}
		if list == nil {
			list = make([]model.Container, len(in))
		}
		list[i] = model.Container{Name: c.Name, Ports: make([]model.ContainerPort, len(c.Ports))}
		for j, p := range c.Ports {
			list[i].Ports[j] = model.ContainerPort{
				Name: p.Name, ContainerPort: p.ContainerPort, Protocol: string(p.Protocol),
				HostPort: p.HostPort, HostIP: p.HostIP,
			}
		}
	}
	return list
}

// EndpointPatch returns the JSON merge patch (RFC 7386) of pods/status that stores the addresses and the container of a
// WorkloadEndpoint in annotations of its pod. The API refuses it if the pod has another UID, unless o has none. The
// revision is ignored: a pod changes all the time, and only one container runtime writes these annotations.
func EndpointPatch(o *model.Object) ([]byte, error) {
	w, ok := o.Value.(*model.WorkloadEndpoint)
	switch {
	case !ok:
		return nil, fmt.Errorf("%s: a %T is no WorkloadEndpoint", o.Key, o.Value)
	case len(w.Spec.IPNetworks) == 0:
		return nil, fmt.Errorf("%s: %w", o.Key, model.FieldError{Field: "spec.ipNetworks", Value: "",
			Rule: "must not be empty"})
	}
	annotations := map[string]string{
		conversion.AnnotationIP: w.Spec.IPNetworks[0], conversion.AnnotationIPs: strings.Join(w.Spec.IPNetworks, ","),
	}
	if w.Spec.ContainerID != "" {
		annotations[conversion.AnnotationContainer] = w.Spec.ContainerID
	}
	return annotationPatch(w.UID, 0, annotations)
}

// ReleasePatch returns the JSON merge patch of pods/status that records the release of a pod's addresses: the
// annotations stay, but are empty. The container stays, too, which identifies the target of a repeated deletion. The
// API refuses the patch if the pod has another UID or resourceVersion; "" and 0 match any.
func ReleasePatch(uid types.UID, revision int64) ([]byte, error) {
	return annotationPatch(uid, revision, map[string]string{conversion.AnnotationIP: "", conversion.AnnotationIPs: ""})
}
