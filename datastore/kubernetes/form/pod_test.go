package form

import (
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/manxnet/manx/datastore/conversion"
	"github.com/manxnet/manx/datastore/model"
)

func kubePod(change func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: "web-0", Namespace: "shop", UID: "u", ResourceVersion: "5", Labels: map[string]string{"app": "web"},
			Annotations: map[string]string{conversion.AnnotationIPs: "10.0.0.7/32,fd00::7/128",
				conversion.AnnotationIP:        "10.0.0.7/32",
				conversion.AnnotationContainer: "c1", "cni.projectcalico.org/ipv4pools": `["p"]`, "other": "dropped"},
			ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kubelet"}},
		},
		Spec: corev1.PodSpec{NodeName: "node-1", ServiceAccountName: "robot", Containers: []corev1.Container{
			{Name: "quiet"},
			{Name: "c", Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 80, Protocol: "TCP"}}}}},
		Status: corev1.PodStatus{Phase: "Running"},
	}
	if change != nil {
		change(p)
	}
	return p
}

func TestEndpoint(t *testing.T) {
	o, notices := Endpoint(kubePod(nil), config)
	if o == nil || o.Err != nil || notices != nil || o.Revision != 5 ||
		o.Key != (model.Key{Kind: model.KindWorkloadEndpoint, Namespace: "shop", Name: "node--1-k8s-web--0-eth0"}) {
		t.Fatalf("%+v, %v", o, notices)
	}
	w := o.Value.(*model.WorkloadEndpoint)
	if len(w.Spec.IPNetworks) > 0 {
		t.Errorf("addresses of annotations count: %+v", w)
	}
	w = w.Confirmed()
	if !reflect.DeepEqual(w.Spec.IPNetworks, []string{"10.0.0.7/32", "fd00::7/128"}) || w.Spec.ContainerID != "c1" ||
		len(w.Spec.Ports) != 1 || w.UID != "u" ||
		!reflect.DeepEqual(w.Annotations, map[string]string{"cni.projectcalico.org/ipv4pools": `["p"]`}) ||
		len(w.ManagedFields) > 0 ||
		!strings.HasPrefix(w.Spec.InterfaceName, "cali") ||
		!reflect.DeepEqual(w.Spec.Profiles, []string{"kns.shop", "ksa.shop.robot"}) {
		t.Errorf("%+v", w)
	}
	for prefix, want := range map[string]string{"": w.Spec.InterfaceName,
		"tap": "tap" + w.Spec.InterfaceName[len("cali"):]} {
		o, _ := Endpoint(kubePod(nil), Config{InterfacePrefix: prefix})
		if have := o.Value.(*model.WorkloadEndpoint).Spec.InterfaceName; have != want {
			t.Errorf("prefix %q: %s", prefix, have)
		}
	}
	now := metav1.Now()
	for what, c := range map[string]struct {
		change           func(*corev1.Pod)
		none, hasAddress bool
		notices, errors  int
	}{
		"host's network": {change: func(p *corev1.Pod) { p.Spec.HostNetwork = true }, none: true},
		"no node":        {change: func(p *corev1.Pod) { p.Spec.NodeName = "" }, none: true},
		"odd node":       {change: func(p *corev1.Pod) { p.Spec.NodeName = "-x" }, none: true, notices: 1},
		"no address":     {change: func(p *corev1.Pod) { p.Annotations = nil }},
		"finished":       {change: func(p *corev1.Pod) { p.Status.Phase = "Succeeded" }},
		"failed":         {change: func(p *corev1.Pod) { p.Status.Phase = "Failed"; p.Status.PodIP = "10.0.0.7" }},
		"released": {change: func(p *corev1.Pod) {
			p.DeletionTimestamp = &now
			p.Annotations[conversion.AnnotationIP] = ""
		}},
		"being deleted": {change: func(p *corev1.Pod) { p.DeletionTimestamp = &now }, hasAddress: true},
		"status": {change: func(p *corev1.Pod) { p.Status.PodIPs = []corev1.PodIP{{IP: "10.0.0.8"}} },
			hasAddress: true},
		"wrong address": {change: func(p *corev1.Pod) { p.Status.PodIP = "cow" }, notices: 1},
		"wrong bandwidth": {change: func(p *corev1.Pod) { p.Annotations["kubernetes.io/ingress-bandwidth"] = "cow" },
			hasAddress: true, notices: 1},
		"no usable version": {change: func(p *corev1.Pod) { p.ResourceVersion = "" }, hasAddress: true, errors: 1},
	} {
		o, notices := Endpoint(kubePod(c.change), config)
		if (o == nil) != c.none || len(notices) != c.notices {
			t.Errorf("%s: %+v, %v", what, o, notices)
			continue
		}
		if o != nil && (len(o.Value.(*model.WorkloadEndpoint).Confirmed().Spec.IPNetworks) > 0) != c.hasAddress ||
			o != nil && (o.Err != nil) != (c.errors > 0) {
			t.Errorf("%s: %+v, %v", what, o.Value, o.Err)
		}
	}
}

// The plugin writes an endpoint in the form in which it is read. A release removes the addresses and keeps the
// container.
func TestEndpointPatches(t *testing.T) {
	o, _ := Endpoint(kubePod(nil), config)
	o.Value = o.Value.(*model.WorkloadEndpoint).Confirmed()
	patch, err := EndpointPatch(o)
	after, meta := patched(t, nil, patch, err)
	if want := map[string]string{conversion.AnnotationIP: "10.0.0.7/32",
		conversion.AnnotationIPs: "10.0.0.7/32,fd00::7/128", conversion.AnnotationContainer: "c1"}; !reflect.DeepEqual(
		after, want) {
		t.Errorf("%v", after)
	}
	if !reflect.DeepEqual(meta, map[string]any{"uid": "u"}) {
		t.Errorf("%v", meta)
	}
	patch, err = ReleasePatch("u", 7)
	after, meta = patched(t, after, patch, err)
	if want := map[string]string{conversion.AnnotationIP: "", conversion.AnnotationIPs: "",
		conversion.AnnotationContainer: "c1"}; !reflect.DeepEqual(after, want) {
		t.Errorf("%v", after)
	}
	if !reflect.DeepEqual(meta, map[string]any{"uid": "u", "resourceVersion": "7"}) {
		t.Errorf("%v", meta)
	}
	if patch, err = ReleasePatch("", 0); err != nil || strings.Contains(string(patch), "uid") ||
		strings.Contains(string(patch), "resourceVersion") {
		t.Errorf("%s, %v", patch, err)
	}
	bare := o.Clone()
	bare.Value.(*model.WorkloadEndpoint).Spec.IPNetworks = nil
	if patch, err := EndpointPatch(bare); err == nil {
		t.Errorf("%s", patch)
	}
	if patch, err := EndpointPatch(model.NewObject(model.IPAMConfigKey, &model.IPAMConfig{})); err == nil {
		t.Errorf("%s", patch)
	}
}
