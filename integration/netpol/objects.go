package main

import (
	"bytes"
	"crypto/sha1"
	"encoding/hex"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	"github.com/projectcalico/api/pkg/lib/numorstring"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/manxnet/manx/datastore/kubernetes"
	"github.com/manxnet/manx/datastore/model"
)

const (
	profilePrefix   = "kns."
	namespacePrefix = "pcns."
	interfacePrefix = "cali"
	defaultOrder    = 1_000_000
)

// writer turns a cluster into what Calico's controllers and CNI plugin keep in etcd about it.
type writer struct {
	node  string
	ports []podPort
}

// objects of a cluster, all of whose pods are on one node.
func (w writer) objects(c cluster) (model.Set, error) {
	all := model.NewSet(defaultTier())
	for name, labels := range c.namespaces {
		o := profile(name, labels)
		all[o.Key] = o
	}
	for _, p := range c.pods {
		o, err := w.endpoint(p)
		if err != nil {
			return nil, fmt.Errorf("pod %s: %w", p.id(), err)
		}
		all[o.Key] = o
	}
	for id, p := range c.policies {
		converted, _, err := kubernetes.NetworkPolicy(&p)
		if err != nil {
			return nil, fmt.Errorf("policy %s: %w", id, err)
		}
		converted.Name = model.KubernetesPolicyPrefix + p.Name
		o := model.NewObject(model.Key{Kind: model.KindNetworkPolicy, Namespace: p.Namespace, Name: converted.Name}, converted)
		all[o.Key] = o
	}
	return all, nil
}

func defaultTier() *model.Object {
	order, deny := float64(defaultOrder), v3.Deny
	key := model.ResourceKey(model.KindTier, model.DefaultTier)
	return model.NewObject(key, &model.Tier{ObjectMeta: metav1.ObjectMeta{Name: key.Name}, Spec: v3.TierSpec{Order: &order, DefaultAction: &deny}})
}

// profile is what stands for a namespace: its labels for all pods in it, and that nothing is forbidden.
func profile(namespace string, labels map[string]string) *model.Object {
	p := &v3.Profile{ObjectMeta: metav1.ObjectMeta{Name: profilePrefix + namespace}}
	p.Spec.LabelsToApply = map[string]string{namespacePrefix + "projectcalico.org/name": namespace}
	for k, v := range labels {
		p.Spec.LabelsToApply[namespacePrefix+k] = v
	}
	p.Spec.Ingress = []v3.Rule{{Action: v3.Allow}}
	p.Spec.Egress = []v3.Rule{{Action: v3.Allow}}
	return model.NewObject(model.ResourceKey(model.KindProfile, p.Name), p)
}

func (w writer) endpoint(p pod) (*model.Object, error) {
	e := &model.WorkloadEndpoint{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Labels: map[string]string{}}}
	for k, v := range p.Labels {
		e.Labels[k] = v
	}
	e.Labels[model.LabelNamespace], e.Labels[model.LabelOrchestrator] = p.Namespace, "k8s"
	e.Spec = model.WorkloadEndpointSpec{
		Orchestrator: "k8s", Node: w.node, Pod: p.Name, Endpoint: "eth0", ContainerID: strings.ReplaceAll(p.id(), "/", "-"),
		InterfaceName: interfaceOf(p), Profiles: []string{profilePrefix + p.Namespace},
		IPNetworks: []string{fmt.Sprintf("%s/%d", p.IP, p.IP.BitLen())},
	}
	for _, port := range w.ports {
		e.Spec.Ports = append(e.Spec.Ports, model.EndpointPort{
			Name: port.Name, Protocol: numorstring.ProtocolFromString(port.Protocol), Port: port.Port})
	}
	name, err := model.WorkloadEndpointName(e.Spec.IDs())
	e.Name = name
	return model.NewObject(model.Key{Kind: model.KindWorkloadEndpoint, Namespace: p.Namespace, Name: name}, e), err
}

// interfaceOf is the name of the host's end, as Calico makes it for pods of Kubernetes.
func interfaceOf(p pod) string {
	sum := sha1.Sum([]byte(p.Namespace + "." + p.Name))
	return interfacePrefix + hex.EncodeToString(sum[:])[:11]
}

// mark is an object that concerns nobody.
func mark(key model.Key, n uint64) *model.Object {
	return model.NewObject(key, &v3.GlobalNetworkSet{ObjectMeta: metav1.ObjectMeta{
		Name: key.Name, Labels: map[string]string{"netpol": strconv.FormatUint(n, 10)}}})
}

// stored is the object as a reader of the datastore finds it, with its defaults.
func stored(o *model.Object) (*model.Object, error) {
	o = o.Clone()
	if err := o.PrepareCreate(time.Unix(0, 0)); err != nil {
		return nil, err
	}
	raw, err := o.Encode()
	if err != nil {
		return nil, err
	}
	found := model.Decode(o.Key, raw, 1)
	return found, found.Err
}

func same(a, b *model.Object) bool {
	x, errX := a.Encode()
	y, errY := b.Encode()
	return errX == nil && errY == nil && bytes.Equal(x, y)
}

// rank is the order in which a cluster comes to be; it goes in the opposite one.
func rank(k model.Key) int {
	switch k.Kind {
	case model.KindTier:
		return 0
	case model.KindProfile:
		return 1
	case model.KindWorkloadEndpoint:
		return 2
	case model.KindNetworkPolicy:
		return 3
	}
	return math.MaxInt
}
