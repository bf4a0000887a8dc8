package fill

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
)

// The writers of objects in a cluster, as in managedFields.
const (
	controllers = "kube-controller-manager"
	kubelet     = "kubelet"
	person      = "kubectl-create"
	network     = "manxd"
)

// node is the object that a kubelet registers. It has been up for some time, so that its status names 50 images.
func node(name string) *corev1.Node {
	now := metav1.Now()
	capacity := corev1.ResourceList{"cpu": resource.MustParse("64"), "memory": resource.MustParse("263841556Ki"),
		"pods": resource.MustParse("110"), "ephemeral-storage": resource.MustParse("959786032Ki"),
		"hugepages-1Gi": resource.MustParse("0"), "hugepages-2Mi": resource.MustParse("0")}
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name,
		Labels: map[string]string{"beta.kubernetes.io/arch": "amd64", "beta.kubernetes.io/os": "linux",
			"kubernetes.io/arch": "amd64", "kubernetes.io/os": "linux", "kubernetes.io/hostname": name,
			"node.kubernetes.io/instance-type": "m6.16xlarge", "topology.kubernetes.io/region": "region-1",
			"topology.kubernetes.io/zone": "zone-1", "rack": "rack-1"},
		Annotations: map[string]string{"volumes.kubernetes.io/controller-managed-attach-detach": "true",
			"node.alpha.kubernetes.io/ttl": "30"},
	}}
	n.Status = corev1.NodeStatus{Capacity: capacity, Allocatable: capacity,
		Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "172.16.0.0"},
			{Type: corev1.NodeHostName, Address: name}},
		DaemonEndpoints: corev1.NodeDaemonEndpoints{KubeletEndpoint: corev1.DaemonEndpoint{Port: 10250}},
		NodeInfo: corev1.NodeSystemInfo{KernelVersion: "6.1.0-40-amd64", OSImage: "Debian GNU/Linux 12 (bookworm)",
			OperatingSystem:         "linux",
			ContainerRuntimeVersion: "containerd://1.6.20", KubeletVersion: "v1.32.0", Architecture: "amd64"},
	}
	for _, t := range []struct {
		typ             corev1.NodeConditionType
		status          corev1.ConditionStatus
		reason, message string
	}{
		{corev1.NodeMemoryPressure, corev1.ConditionFalse, "KubeletHasSufficientMemory",
			"kubelet has sufficient memory available"},
		{corev1.NodeDiskPressure, corev1.ConditionFalse, "KubeletHasNoDiskPressure", "kubelet has no disk pressure"},
		{corev1.NodePIDPressure, corev1.ConditionFalse, "KubeletHasSufficientPID",
			"kubelet has sufficient PID available"},
		{corev1.NodeReady, corev1.ConditionTrue, "KubeletReady", "kubelet is posting ready status"},
	} {
		n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: t.typ, Status: t.status,
			Reason:  t.reason,
			Message: t.message, LastHeartbeatTime: now, LastTransitionTime: now})
	}
	for i := range 50 {
		n.Status.Images = append(n.Status.Images, corev1.ContainerImage{SizeBytes: 40_000_000 + int64(i),
			Names: []string{
				fmt.Sprintf("registry.example.com/team-%d/service-%d@sha256:%064x", i%9, i, i),
				fmt.Sprintf("registry.example.com/team-%d/service-%d:v1.%d.0", i%9, i, i)}})
	}
	return n
}

// trimPod removes from a pod all but the required fields.
func trimPod(p *corev1.Pod) {
	p.Spec = corev1.PodSpec{NodeName: p.Spec.NodeName, ServiceAccountName: "app",
		AutomountServiceAccountToken: p.Spec.AutomountServiceAccountToken,
		Containers: []corev1.Container{{Name: "app", Image: p.Spec.Containers[0].Image,
			Ports: p.Spec.Containers[0].Ports}}}
}

// templated is a ReplicaSet's pod from a common template, with the fields that admission of a cluster adds, on its
// node.
func templated(namespace, name, node string) *corev1.Pod {
	yes, no, mode, seconds := true, false, int32(0o644), int64(300)
	expires := int64(3607)
	probe := func(path string) *corev1.Probe {
		return &corev1.Probe{ProbeHandler: corev1.ProbeHandler{
			HTTPGet: &corev1.HTTPGetAction{Path: path, Port: intstr.FromString("http")}}}
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, GenerateName: "app-0-" + hash + "-",
			Labels: map[string]string{"app": "app-0", "app.kubernetes.io/name": "app-0", "tier": "frontend",
				"version": "v1", "pod-template-hash": hash},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "app-0-" + hash,
				UID: "6f1d4f0a-22f8-4a57-9a3b-0d7c3f1e5a10", Controller: &yes, BlockOwnerDeletion: &yes}}},
		Spec: corev1.PodSpec{NodeName: node, ServiceAccountName: "app", AutomountServiceAccountToken: &no,
			Containers: []corev1.Container{{Name: "app", Image: "registry.example.com/team-1/service-1:v1.1.0",
				Args: []string{"--listen=:8080", "--metrics=:9090", "--log-format=json"},
				Env: []corev1.EnvVar{
					{Name: "DATABASE_URL", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{
						LocalObjectReference: corev1.LocalObjectReference{Name: "database"}, Key: "url"}}},
					{Name: "POD_NAME", ValueFrom: &corev1.EnvVarSource{
						FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"}}},
					{Name: "GOMEMLIMIT", Value: "200MiB"}, {Name: "REGION", Value: "region-1"}},
				Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8080},
					{Name: "metrics", ContainerPort: 9090}},
				Resources: corev1.ResourceRequirements{
					Requests: corev1.ResourceList{"cpu": resource.MustParse("100m"),
						"memory": resource.MustParse("128Mi")},
					Limits: corev1.ResourceList{"memory": resource.MustParse("256Mi")}},
				LivenessProbe: probe("/healthz"), ReadinessProbe: probe("/readyz"),
				SecurityContext: &corev1.SecurityContext{AllowPrivilegeEscalation: &no, ReadOnlyRootFilesystem: &yes,
					RunAsNonRoot: &yes,
					Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}},
				VolumeMounts: []corev1.VolumeMount{{Name: "config", MountPath: "/etc/app"},
					{Name: "kube-api-access-x7k2p",
						ReadOnly: true, MountPath: "/var/run/secrets/kubernetes.io/serviceaccount"}},
			}},
			Tolerations: []corev1.Toleration{
				{Key: "node.kubernetes.io/not-ready", Operator: corev1.TolerationOpExists,
					Effect: corev1.TaintEffectNoExecute, TolerationSeconds: &seconds},
				{Key: "node.kubernetes.io/unreachable", Operator: corev1.TolerationOpExists,
					Effect: corev1.TaintEffectNoExecute, TolerationSeconds: &seconds}},
			Volumes: []corev1.Volume{
				{Name: "config", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
					LocalObjectReference: corev1.LocalObjectReference{Name: "config"}}}},
				{Name: "kube-api-access-x7k2p", VolumeSource: corev1.VolumeSource{
					Projected: &corev1.ProjectedVolumeSource{DefaultMode: &mode,
						Sources: []corev1.VolumeProjection{
							{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{
								Path: "token", ExpirationSeconds: &expires}},
							{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: corev1.LocalObjectReference{
								Name: "kube-root-ca.crt"},
								Items: []corev1.KeyToPath{{Key: "ca.crt", Path: "ca.crt"}}}},
							{DownwardAPI: &corev1.DownwardAPIProjection{
								Items: []corev1.DownwardAPIVolumeFile{{Path: "namespace",
									FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.namespace"}}}}},
						}}}}},
		},
	}
}

// status returns a kubelet's status of a received pod without an address, or of a running pod.
func status(host, ip string, runs bool) corev1.PodStatus {
	now, started := metav1.Now(), true
	s := corev1.PodStatus{Phase: corev1.PodPending, HostIP: host, HostIPs: []corev1.HostIP{{IP: host}}, StartTime: &now}
	is := corev1.ConditionFalse
	c := corev1.ContainerStatus{Name: "app", Image: "registry.example.com/team-1/service-1:v1.1.0",
		State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}}}
	if runs {
		is, s.Phase, s.PodIP, s.PodIPs = corev1.ConditionTrue, corev1.PodRunning, ip, []corev1.PodIP{{IP: ip}}
		c.State, c.Ready, c.Started = corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}},
			true, &started
		c.ImageID = fmt.Sprintf("registry.example.com/team-1/service-1@sha256:%064x", 1)
		c.ContainerID = "containerd://" + container(0)
	}
	s.ContainerStatuses = []corev1.ContainerStatus{c}
	for _, t := range []corev1.PodConditionType{"PodReadyToStartContainers", corev1.PodInitialized, corev1.PodReady,
		corev1.ContainersReady, corev1.PodScheduled} {
		s.Conditions = append(s.Conditions, corev1.PodCondition{Type: t, Status: is, LastTransitionTime: now})
	}
	return s
}

// examples has one object of each kind, as the API returns it after the writes of all its writers in a cluster.
type examples struct {
	namespace *corev1.Namespace
	account   *corev1.ServiceAccount
	node      *corev1.Node
	pod       *corev1.Pod
	policy    *networkingv1.NetworkPolicy
	service   *corev1.Service
	slice     *discoveryv1.EndpointSlice
}

// example is the namespace of the examples. They are deleted after they are copied.
const example = "example"

func createAs(manager string) metav1.CreateOptions {
	return metav1.CreateOptions{FieldManager: manager}
}

// makeExamples writes the examples.
func (c Cluster) makeExamples(ctx context.Context, api kubernetes.Interface) (e examples, err error) {
	steps := []func() error{
		func() (err error) {
			e.namespace, err = api.CoreV1().Namespaces().Create(ctx,
				&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: example,
					Labels: map[string]string{"team": "team-0", "env": "prod"}}}, createAs(person))
			return err
		},
		func() (err error) {
			e.account, err = api.CoreV1().ServiceAccounts(example).Create(ctx,
				&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "app"}}, createAs(controllers))
			return err
		},
		func() (err error) { e.node, err = exampleNode(ctx, api); return err },
		func() (err error) { e.pod, err = c.examplePod(ctx, api); return err },
		func() (err error) {
			p := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: example, Name: "policy-3"}}
			c.makePolicy(3*c.Namespaces, p)
			p.Namespace = example
			e.policy, err = api.NetworkingV1().NetworkPolicies(example).Create(ctx, p, createAs(person))
			return err
		},
		func() (err error) {
			e.service, err = api.CoreV1().Services(example).Create(ctx,
				&corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "svc-0",
					Labels: map[string]string{"app": "app-0"}}, Spec: corev1.ServiceSpec{
					Selector: map[string]string{"app": "app-0"},
					Ports:    []corev1.ServicePort{{Name: "http", Port: 80, TargetPort: intstr.FromString("http")}}}},
				createAs(person))
			return err
		},
		func() (err error) { e.slice, err = exampleSlice(ctx, api); return err },
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return e, fmt.Errorf("an example: %w", err)
		}
	}
	return e, nil
}

func exampleNode(ctx context.Context, api kubernetes.Interface) (*corev1.Node, error) {
	node := node(example)
	if _, err := api.CoreV1().Nodes().Create(ctx, node, createAs(kubelet)); err != nil {
		return nil, err
	}
	text := `{"metadata":{"annotations":{"projectcalico.org/IPv4Address":"172.16.0.1/12"}}}`
	return api.CoreV1().Nodes().Patch(ctx, example, types.MergePatchType, []byte(text),
		metav1.PatchOptions{FieldManager: network}, "status")
}

// examplePod writes the start of a pod.
func (c Cluster) examplePod(ctx context.Context, api kubernetes.Interface) (*corev1.Pod, error) {
	p := templated(example, example, example)
	if c.Plain {
		trimPod(p)
	}
	if _, err := api.CoreV1().Pods(example).Create(ctx, p, createAs(controllers)); err != nil {
		return nil, err
	}
	if err := starts(ctx, api, example, example, addresses{host: "172.16.0.1", pod: "10.64.0.1",
		container: container(0)}); err != nil {
		return nil, err
	}
	return api.CoreV1().Pods(example).Get(ctx, example, metav1.GetOptions{})
}

func exampleSlice(ctx context.Context, api kubernetes.Interface) (*discoveryv1.EndpointSlice, error) {
	yes, no, name, node, zone := true, false, "http", "node-1", "zone-1"
	port := int32(8080)
	return api.DiscoveryV1().EndpointSlices(example).Create(ctx, &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Name: "svc-0-x7k2p", GenerateName: "svc-0-",
			Labels: map[string]string{"app": "app-0", discoveryv1.LabelServiceName: "svc-0",
				discoveryv1.LabelManagedBy: "endpointslice-controller.k8s.io"},
			Annotations: map[string]string{"endpoints.kubernetes.io/last-change-trigger-time": time.Now().UTC().Format(
				time.RFC3339)},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Service", Name: "svc-0",
				UID: "6f1d4f0a-22f8-4a57-9a3b-0d7c3f1e5a11", Controller: &yes, BlockOwnerDeletion: &yes}}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &name, Port: &port}},
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.64.0.1"}, NodeName: &node, Zone: &zone,
			Conditions: discoveryv1.EndpointConditions{Ready: &yes, Serving: &yes, Terminating: &no},
			TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: example, Name: "pod",
				UID: "6f1d4f0a-22f8-4a57-9a3b-0d7c3f1e5a12"}}},
	}, createAs(controllers))
}
