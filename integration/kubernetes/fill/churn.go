package fill

import (
	"context"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
)

// addresses are the addresses and IDs of a started pod.
type addresses struct{ host, pod, container string }

// starts writes the start of a pod that has a node like the programs of a cluster: the kubelet has seen it, the CNI
// plugin gave it an address, and it runs.
func starts(ctx context.Context, api kubernetes.Interface, namespace, name string, a addresses) error {
	if err := updateStatus(ctx, api, namespace, name, status(a.host, a.pod, false)); err != nil {
		return err
	}
	if err := annotate(ctx, api.CoreV1().Pods(namespace), name, a.pod+"/32", a.container); err != nil {
		return err
	}
	return updateStatus(ctx, api, namespace, name, status(a.host, a.pod, true))
}

// updateStatus updates the status of a pod, as the kubelet does.
func updateStatus(ctx context.Context, api kubernetes.Interface, namespace, name string, s corev1.PodStatus) error {
	p, err := api.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	p.ResourceVersion, p.Status = "", s
	_, err = api.CoreV1().Pods(namespace).UpdateStatus(ctx, p, metav1.UpdateOptions{FieldManager: kubelet})
	return err
}

func annotate(ctx context.Context, pods corev1client.PodInterface, name, ip, container string) error {
	text := fmt.Sprintf(
		`{"metadata":{"annotations":{"cni.projectcalico.org/podIP":%q,"cni.projectcalico.org/podIPs":%[1]q,`+
			`"cni.projectcalico.org/containerID":%q}}}`, ip, container)
	_, err := pods.Patch(ctx, name, types.MergePatchType, []byte(text),
		metav1.PatchOptions{FieldManager: network}, "status")
	return err
}

// Change changes the status of a pod, as a kubelet does: one event of a watch.
func (f *Filled) Change(ctx context.Context, i int) error {
	namespace, name := f.PodName(i)
	text := fmt.Sprintf(`{"status":{"conditions":[{"type":"Ready","lastProbeTime":%q}]}}`,
		time.Now().UTC().Format(time.RFC3339))
	_, err := f.API.CoreV1().Pods(namespace).Patch(ctx, name, types.StrategicMergePatchType, []byte(text),
		metav1.PatchOptions{FieldManager: kubelet}, "status")
	return err
}

// Life writes the life of one pod as a cluster does: it is created, has a status, an address, runs, is to end, has
// ended, releases its address, and is deleted in two steps (nine events of the pod). Its block changes twice, and the
// EndpointSlice of its Service, if it has one, twice. Its number must be Pods or more.
func (f *Filled) Life(ctx context.Context, i int, lasts time.Duration) error {
	p := f.example.DeepCopy()
	p.ObjectMeta = metav1.ObjectMeta{OwnerReferences: p.OwnerReferences, Annotations: map[string]string{}}
	f.makePod(i, p)
	running := p.Status
	p.Status, p.Annotations = corev1.PodStatus{}, nil
	pods := f.API.CoreV1().Pods(p.Namespace)
	node, _ := f.place(i)
	a := addresses{nodeAddress(node).String(), f.address(i).String(), container(i)}
	if _, err := pods.Create(ctx, p, createAs(controllers)); err != nil {
		return err
	}
	if err := f.block(ctx, i); err != nil {
		return err
	}
	if err := starts(ctx, f.API, p.Namespace, p.Name, a); err != nil {
		return err
	}
	if err := f.slice(ctx, i, true); err != nil {
		return err
	}
	time.Sleep(lasts) // the life of the pod
	if err := pods.Delete(ctx, p.Name, *metav1.NewDeleteOptions(30)); err != nil {
		return err
	}
	if err := f.slice(ctx, i, false); err != nil {
		return err
	}
	for j := range running.Conditions {
		running.Conditions[j].Status = corev1.ConditionFalse
	}
	if err := updateStatus(ctx, f.API, p.Namespace, p.Name, running); err != nil {
		return err
	}
	if err := annotate(ctx, f.API.CoreV1().Pods(p.Namespace), p.Name, "", a.container); err != nil {
		return err
	}
	if err := f.block(ctx, i); err != nil {
		return err
	}
	return pods.Delete(ctx, p.Name, *metav1.NewDeleteOptions(0))
}

// block changes the block of a pod's address, as IPAM does.
func (f *Filled) block(ctx context.Context, i int) error {
	node, nth := f.place(i)
	cidr := strings.NewReplacer(".", "-", "/", "-").Replace(f.blockOf(node, nth>>6).String())
	text := fmt.Sprintf(`{"spec":{"sequenceNumber":%d}}`, time.Now().UnixNano())
	return f.API.CoreV1().RESTClient().Patch(types.MergePatchType).AbsPath("/apis/crd.projectcalico.org/v1/ipamblocks",
		cidr).
		Body([]byte(text)).Do(ctx).Error()
}

// slice changes the EndpointSlice of a pod's Deployment, if the Deployment has a Service: one of its endpoints is ready
// or not ready.
func (f *Filled) slice(ctx context.Context, i int, ready bool) error {
	service := f.deployment(i)*f.Namespaces + i%f.Namespaces
	if service >= f.Services {
		return nil
	}
	text := fmt.Sprintf(`[{"op":"replace","path":"/endpoints/0/conditions/ready","value":%t}]`, ready)
	_, err := f.API.DiscoveryV1().EndpointSlices(f.namespace(i)).Patch(ctx,
		fmt.Sprintf("svc-%d-x7k2p", service/f.Namespaces),
		types.JSONPatchType, []byte(text), metav1.PatchOptions{FieldManager: controllers})
	return err
}

// Steadily calls do with growing numbers, rate times a second, until the time is over, and waits for all calls to end.
func Steadily(ctx context.Context, rate float64, lasts time.Duration, do func(ctx context.Context, i int) error) error {
	group, ctx := errgroup.WithContext(ctx)
	tick := time.NewTicker(time.Duration(float64(time.Second) / rate))
	defer tick.Stop()
	end := time.Now().Add(lasts)
	for i := 0; time.Now().Before(end) && ctx.Err() == nil; i++ {
		group.Go(func() error { return do(ctx, i) })
		<-tick.C
	}
	return group.Wait()
}
