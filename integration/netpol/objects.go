package main

import (
	"bytes"
	"math"
	"strconv"
	"time"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/manxnet/manx/datastore/codec"
	"github.com/manxnet/manx/datastore/conversion"
	"github.com/manxnet/manx/datastore/model"
)

// writer turns a cluster into the objects that Calico's controllers and CNI plugin keep in etcd for it.
type writer struct {
	nodes placement
	ports []podPort
}

// objects of a cluster.
func (w writer) objects(c cluster) model.Set {
	var documents []*model.Object
	for name, labels := range c.namespaces {
		documents = append(documents, model.NewObject(model.ResourceKey(model.KindNamespace, name),
			&model.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}))
	}
	for _, p := range c.pods {
		documents = append(documents, w.pod(p))
	}
	for _, p := range c.policies {
		documents = append(documents, model.NewObject(model.Key{Kind: model.KindKubernetesNetworkPolicy,
			Namespace: p.Namespace, Name: p.Name}, &p))
	}
	// A rule that cannot be converted is left out in a cluster, too: the table shows the consequence.
	all, _ := conversion.FromDocuments(append(documents, defaultTier()))
	return model.NewSet(all...)
}

func (w writer) pod(p pod) *model.Object {
	o := &model.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name, Labels: p.Labels}}
	o.Spec.NodeName = w.nodes.node(p.Namespace)
	o.Status.PodIP, o.Status.Phase = p.IP.String(), "Running"
	c := model.Container{Name: "server"}
	for _, port := range w.ports {
		c.Ports = append(c.Ports, model.ContainerPort{Name: port.Name, Protocol: port.Protocol,
			ContainerPort: int32(port.Port)})
	}
	o.Spec.Containers = []model.Container{c}
	return model.NewObject(model.Key{Kind: model.KindPod, Namespace: p.Namespace, Name: p.Name}, o)
}

func defaultTier() *model.Object {
	order, deny := 1_000_000.0, v3.Deny
	key := model.ResourceKey(model.KindTier, model.DefaultTier)
	return model.NewObject(key, &model.Tier{ObjectMeta: metav1.ObjectMeta{Name: key.Name},
		Spec: v3.TierSpec{Order: &order, DefaultAction: &deny}})
}

// interfaceOf returns the name of the host's end.
func interfaceOf(p pod) string { return conversion.InterfaceName("cali", p.Namespace, p.Name) }

// mark returns an irrelevant object.
func mark(key model.Key, n uint64) *model.Object {
	return model.NewObject(key, &v3.GlobalNetworkSet{ObjectMeta: metav1.ObjectMeta{
		Name: key.Name, Labels: map[string]string{"netpol": strconv.FormatUint(n, 10)}}})
}

// stored returns the object as a reader of the datastore gets it, with its defaults.
func stored(o *model.Object) (*model.Object, error) {
	o = o.Clone()
	if err := codec.PrepareCreate(o, time.Unix(0, 0)); err != nil {
		return nil, err
	}
	raw, err := codec.Encode(o)
	if err != nil {
		return nil, err
	}
	found := codec.Decode(o.Key, raw, 1)
	return found, found.Err
}

func equalObjects(a, b *model.Object) bool {
	x, errX := codec.Encode(a)
	y, errY := codec.Encode(b)
	return errX == nil && errY == nil && bytes.Equal(x, y)
}

// rank is the order of creations in a cluster; deletions have the opposite order.
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
