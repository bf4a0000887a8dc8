// Package kubeapi queries the Kubernetes API for data that a Store does not have: the current state of one pod or
// virtual machine, Services, and the running programs of Calico.
package kubeapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	appsv1client "k8s.io/client-go/kubernetes/typed/apps/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/manxnet/manx/controllers/caliconode"
	"github.com/manxnet/manx/controllers/migration"
	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/model"
)

// API is a client of the Kubernetes API.
type API struct {
	Core corev1client.CoreV1Interface
	Apps appsv1client.AppsV1Interface
	// Namespace is that of Manx's pods, for Ending.
	Namespace string

	objects *objects
}

// timeout bounds one request.
const timeout = 30 * time.Second

// New returns a client. It does not connect.
func New(config *rest.Config) (*API, error) {
	core, err := corev1client.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	apps, err := appsv1client.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	objects, err := newObjects(config)
	if err != nil {
		return nil, err
	}
	return &API{Core: core, Apps: apps, objects: objects}, nil
}

// Objects returns the client for objects of all kinds.
func (a *API) Objects() migration.API { return a.objects }

// Services returns the client for services and namespaces.
func (a *API) Services() corev1client.CoreV1Interface { return a.Core }

// Pod reads a pod, with the fields from which an endpoint is derived.
func (a *API) Pod(ctx context.Context, namespace, name string) (*model.Pod, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	p, err := a.Core.Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("pod %s/%s %w", namespace, name, datastore.ErrNotFound)
	}
	if err != nil {
		return nil, fmt.Errorf("pod %s/%s: %w", namespace, name, err)
	}
	m := &model.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name, UID: p.UID,
		Annotations: p.Annotations, DeletionTimestamp: p.DeletionTimestamp}}
	m.Spec = model.PodSpec{NodeName: p.Spec.NodeName, HostNetwork: p.Spec.HostNetwork,
		ServiceAccountName: p.Spec.ServiceAccountName}
	m.Status = model.PodStatus{Phase: string(p.Status.Phase), PodIP: p.Status.PodIP}
	for _, ip := range p.Status.PodIPs {
		m.Status.PodIPs = append(m.Status.PodIPs, model.PodIP{IP: ip.IP})
	}
	return m, nil
}

// VirtualMachine reports whether KubeVirt has a VirtualMachine of that name, or a VirtualMachineInstance without one:
// the instance of a deleted machine will be deleted, too. It returns true if the API does not serve these resources.
func (a *API) VirtualMachine(ctx context.Context, namespace, name string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if vm, served, err := a.virtual(ctx, "virtualmachines", namespace, name); err != nil || !served || vm != nil {
		return true, err
	}
	instance, served, err := a.virtual(ctx, "virtualmachineinstances", namespace, name)
	if err != nil || !served {
		return true, err
	}
	return instance != nil && !slices.ContainsFunc(instance.OwnerReferences, func(o metav1.OwnerReference) bool {
		return o.Kind == "VirtualMachine"
	}), nil
}

// virtual reads the metadata of a KubeVirt object, nil if there is none. served reports whether the API has such
// objects.
func (a *API) virtual(ctx context.Context, resource, namespace, name string) (o *metav1.PartialObjectMetadata,
	served bool, err error) {
	result := a.Core.RESTClient().Get().AbsPath("/apis/kubevirt.io/v1/namespaces", namespace, resource, name).
		SetHeader("Accept", "application/json").Do(ctx)
	err = result.Error()
	var status *apierrors.StatusError
	if apierrors.IsNotFound(err) && errors.As(err, &status) {
		d := status.ErrStatus.Details // only an answer about a served resource names the object
		return nil, d != nil && d.Name == name, nil
	}
	if err == nil {
		var raw []byte
		if raw, err = result.Raw(); err == nil {
			o = new(metav1.PartialObjectMetadata)
			err = json.Unmarshal(raw, o)
		}
	}
	if err != nil {
		return nil, true, fmt.Errorf("%s %s/%s of KubeVirt: %w", resource, namespace, name, err)
	}
	return o, true, nil
}

// calico selects calico-kube-controllers, from the API's cache, which is fresh enough.
var calico = metav1.ListOptions{LabelSelector: "k8s-app=calico-kube-controllers", ResourceVersion: "0"}

// Others returns the place of running calico-kube-controllers; empty if there are none.
func (a *API) Others(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for _, namespace := range caliconode.Places() {
		place, err := a.deployment(ctx, namespace)
		if place == "" && err == nil {
			place, err = a.pod(ctx, namespace, calico)
		}
		if err != nil {
			return "", err
		}
		if place != "" {
			return fmt.Sprintf("calico-kube-controllers run (%s)", place), nil
		}
	}
	return "", nil
}

// Ending returns the place of a pod that has not ended: of Manx in a.Namespace, or of calico-kube-controllers where no
// Deployment is to run them; empty if there are none.
func (a *API) Ending(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	place, err := a.pod(ctx, a.Namespace, metav1.ListOptions{LabelSelector: "k8s-app in (manx-controllers,manx-node)"})
	if place != "" || err != nil {
		return place, err
	}
	for _, namespace := range caliconode.Places() {
		if place, err = a.deployment(ctx, namespace); place != "" || err != nil {
			return "", err // these stay
		}
	}
	for _, namespace := range caliconode.Places() {
		if place, err = a.pod(ctx, namespace, calico); place != "" || err != nil {
			return place, err
		}
	}
	return "", nil
}

// deployment returns the place of a Deployment that is to run calico-kube-controllers; empty if there is none.
func (a *API) deployment(ctx context.Context, namespace string) (string, error) {
	deployments, err := a.Apps.Deployments(namespace).List(ctx, calico)
	if err != nil {
		return "", fmt.Errorf("deployments of namespace %s: %w", namespace, err)
	}
	for _, d := range deployments.Items {
		if d.DeletionTimestamp == nil && (d.Spec.Replicas == nil || *d.Spec.Replicas > 0) {
			return fmt.Sprintf("deployment %s/%s", namespace, d.Name), nil
		}
	}
	return "", nil
}

// pod returns the place of a pod that has not ended; empty if there is none.
func (a *API) pod(ctx context.Context, namespace string, options metav1.ListOptions) (string, error) {
	pods, err := a.Core.Pods(namespace).List(ctx, options)
	if err != nil {
		return "", fmt.Errorf("pods of namespace %s: %w", namespace, err)
	}
	for _, p := range pods.Items {
		if p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed {
			return fmt.Sprintf("pod %s/%s", namespace, p.Name), nil
		}
	}
	return "", nil
}

// OldNodes names the pods of calico-node that may be of a release before 3.32; empty for none. It reads the DaemonSet:
// its image, and whether all its pods are up to date.
func (a *API) OldNodes(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for _, namespace := range caliconode.Places() {
		d, err := a.Apps.DaemonSets(namespace).Get(ctx, "calico-node", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return "", fmt.Errorf("daemonset %s/calico-node: %w", namespace, err)
		}
		if reason := oldNodes(d); reason != "" {
			return fmt.Sprintf("daemonset %s/calico-node: %s", namespace, reason), nil
		}
	}
	return "", nil
}

// release matches the version in the tag of an image.
var release = regexp.MustCompile(`:v?(\d+)\.(\d+)\.[^/]*$`)

// settled reports whether all pods of a DaemonSet are updated and available.
func settled(d *appsv1.DaemonSet) bool {
	s := d.Status
	return s.ObservedGeneration == d.Generation && s.CurrentNumberScheduled == s.DesiredNumberScheduled &&
		s.UpdatedNumberScheduled == s.DesiredNumberScheduled && s.NumberUnavailable == 0 && s.NumberMisscheduled == 0
}

func oldNodes(d *appsv1.DaemonSet) string {
	switch {
	case !settled(d):
		return "not all of its pods are updated and available"
	case d.Status.DesiredNumberScheduled == 0:
		return ""
	}
	for _, c := range d.Spec.Template.Spec.Containers {
		if c.Name != "calico-node" {
			continue
		}
		v := release.FindStringSubmatch(c.Image)
		if v == nil {
			return fmt.Sprintf("the version of image %q is not known", c.Image)
		}
		major, _ := strconv.Atoi(v[1])
		minor, _ := strconv.Atoi(v[2])
		if major < 3 || major == 3 && minor < 32 {
			return fmt.Sprintf("image %q is older than 3.32", c.Image)
		}
	}
	return ""
}
