package fill

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/manxnet/manx/datastore/kubernetes/form"
	"github.com/manxnet/manx/datastore/model"
)

// Definitions creates the CustomResourceDefinitions of a folder's YAML files, and waits until they are served.
func Definitions(ctx context.Context, config *rest.Config, folder string) error {
	api, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	files, err := filepath.Glob(filepath.Join(folder, "*.yaml"))
	if err != nil || len(files) == 0 {
		return errors.Join(err, fmt.Errorf("%s: no YAML files", folder))
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		err = api.RESTClient().Post().AbsPath("/apis/apiextensions.k8s.io/v1/customresourcedefinitions").
			SetHeader("Content-Type", "application/yaml").Body(text).Do(ctx).Error()
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
	}
	for {
		var crds struct {
			Items []struct {
				Status struct{ Conditions []metav1.Condition }
			}
		}
		raw, err := api.RESTClient().Get().AbsPath("/apis/apiextensions.k8s.io/v1/customresourcedefinitions").Do(
			ctx).Raw()
		if err == nil {
			err = json.Unmarshal(raw, &crds)
		}
		if err != nil {
			return err
		}
		served := 0
		for _, c := range crds.Items {
			for _, condition := range c.Status.Conditions {
				if condition.Type == "Established" && condition.Status == metav1.ConditionTrue {
					served++
				}
			}
		}
		if served >= len(files) {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// Filled is an apiserver with a cluster in it.
type Filled struct {
	Cluster
	API kubernetes.Interface

	example *corev1.Pod
}

// Fill writes the objects of a cluster into an apiserver, whose etcd is at an endpoint. The CustomResourceDefinitions
// of crd.projectcalico.org/v1 must exist. There must be no other writer.
func (c Cluster) Fill(ctx context.Context, config *rest.Config, etcd string) (*Filled, error) {
	api, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{etcd}, DialTimeout: 10 * time.Second,
		MaxCallSendMsgSize: 64 << 20})
	if err != nil {
		return nil, err
	}
	defer client.Close() //nolint:errcheck // everything was acknowledged
	e, err := c.makeExamples(ctx, api)
	if err != nil {
		return nil, err
	}
	w := newWriter(ctx, client)
	copies(w, "/registry/namespaces/", e.namespace, c.Namespaces, c.makeNamespace)
	copies(w, "/registry/serviceaccounts/", e.account, 2*c.Namespaces, c.makeAccount)
	copies(w, "/registry/minions/", e.node, c.Nodes, c.makeNode)
	copies(w, "/registry/pods/", e.pod, c.Pods, c.makePod)
	copies(w, "/registry/networkpolicies/", e.policy, c.Policies, c.makePolicy)
	copies(w, "/registry/services/specs/", e.service, c.Services, c.makeService)
	copies(w, "/registry/endpointslices/", e.slice, c.Services, c.makeSlice)
	if err := c.writeCustom(ctx, w, api); err != nil {
		return nil, err
	}
	if err := w.end(); err != nil {
		return nil, err
	}
	return &Filled{c, api, e.pod}, removeExamples(ctx, api)
}

// removeExamples removes the examples.
func removeExamples(ctx context.Context, api kubernetes.Interface) error {
	now := *metav1.NewDeleteOptions(0)
	return errors.Join(
		api.CoreV1().Pods(example).Delete(ctx, example, now),
		api.CoreV1().Nodes().Delete(ctx, example, now),
		api.NetworkingV1().NetworkPolicies(example).Delete(ctx, "policy-3", now),
		api.CoreV1().Services(example).Delete(ctx, "svc-0", now),
		api.DiscoveryV1().EndpointSlices(example).Delete(ctx, "svc-0-x7k2p", now),
		api.CoreV1().ServiceAccounts(example).Delete(ctx, "app", now),
	)
}

// protoObject is an object of Kubernetes that can be copied.
type protoObject[T any] interface {
	runtime.Object
	metav1.Object
	DeepCopy() T
}

// copies writes n copies of an example, each changed by fit.
func copies[T protoObject[T]](w *writer, path string, example T, n int, fit func(i int, o T)) {
	kinds, _, err := scheme.Scheme.ObjectKinds(example)
	if err != nil {
		w.fail(err)
		return
	}
	encoder := scheme.Codecs.EncoderForVersion(protobuf.NewSerializer(scheme.Scheme, scheme.Scheme),
		kinds[0].GroupVersion())
	for i := range n {
		o := example.DeepCopy()
		o.SetUID(types.UID(uuid.NewUUID()))
		o.SetResourceVersion("")
		fit(i, o)
		var b bytes.Buffer
		if err := encoder.Encode(o, &b); err != nil {
			w.fail(err)
			return
		}
		key := path
		if o.GetNamespace() != "" {
			key += o.GetNamespace() + "/"
		}
		w.put(key+o.GetName(), b.String())
	}
}

// writeCustom writes the custom resources: an IP pool, the configuration of BGP without a full mesh, which is unusual
// with so many nodes, and the blocks, affinities and handles of the pods' addresses.
func (c Cluster) writeCustom(ctx context.Context, w *writer, api kubernetes.Interface) error {
	pool := &model.IPPool{Spec: model.IPPoolSpec{CIDR: pool.String(), BlockSize: blockBits, NATOutgoing: true,
		NodeSelector: "all()",
		IPIPMode:     "Never", VXLANMode: "Never"}}
	off := false
	bgp := &model.BGPConfiguration{Spec: model.BGPConfigurationSpec{NodeToNodeMeshEnabled: &off}}
	for _, o := range []*model.Object{
		model.NewObject(model.ResourceKey(model.KindIPPool, "pods"), pool),
		model.NewObject(model.ResourceKey(model.KindBGPConfiguration, "default"), bgp),
	} {
		if err := create(ctx, api, o); err != nil {
			return err
		}
	}
	metadata, err := storedMetadata(ctx, w, api)
	if err != nil {
		return err
	}
	for _, o := range c.allocations() {
		r, _ := form.CustomResource(form.V1, o.Key.Kind)
		text, err := form.Encode(form.V1, o)
		if err == nil {
			text, err = metadata.addTo(text)
		}
		if err != nil {
			return err
		}
		name, err := form.Name(o.Key)
		if err != nil {
			return err
		}
		w.put("/registry/"+r.Group+"/"+r.Plural+"/"+name, string(text))
	}
	return nil
}

func create(ctx context.Context, api kubernetes.Interface, o *model.Object) error {
	r, _ := form.CustomResource(form.V1, o.Key.Kind)
	text, err := form.Encode(form.V1, o)
	if err != nil {
		return err
	}
	err = api.CoreV1().RESTClient().Post().AbsPath("/apis", r.Group, r.Version, r.Plural).Body(text).Param(
		"fieldManager", network).
		SetHeader("Content-Type", "application/json").Do(ctx).Error()
	if err != nil {
		return fmt.Errorf("%s: %w", o.Key, err)
	}
	return nil
}

// members are the members of a JSON object.
type members map[string]json.RawMessage

// storedMetadata returns the metadata that the apiserver adds to a block.
func storedMetadata(ctx context.Context, w *writer, api kubernetes.Interface) (members, error) {
	one := Cluster{Nodes: 2, Pods: 1, Namespaces: 1}
	block := one.allocations()[0]
	if err := create(ctx, api, block); err != nil {
		return nil, err
	}
	name, err := form.Name(block.Key)
	if err != nil {
		return nil, err
	}
	key := "/registry/crd.projectcalico.org/ipamblocks/" + name
	found, err := w.client.Get(ctx, key)
	if err != nil || len(found.Kvs) != 1 {
		return nil, errors.Join(err, fmt.Errorf("the apiserver does not keep %s at %s", block.Key, key))
	}
	var stored struct{ Metadata members }
	if err := json.Unmarshal(found.Kvs[0].Value, &stored); err != nil {
		return nil, err
	}
	if _, err := w.client.Delete(ctx, key); err != nil {
		return nil, err
	}
	added := members{}
	for _, name := range []string{"uid", "creationTimestamp", "generation", "managedFields"} {
		added[name] = stored.Metadata[name]
	}
	return added, nil
}

// addTo adds metadata to a custom resource.
func (m members) addTo(text []byte) ([]byte, error) {
	var top, own members
	if err := json.Unmarshal(text, &top); err != nil {
		return nil, err
	}
	if err := json.Unmarshal(top["metadata"], &own); err != nil {
		return nil, err
	}
	for name, value := range m {
		own[name] = value
	}
	own["uid"], _ = json.Marshal(uuid.NewUUID()) // a string can always be encoded
	var err error
	if top["metadata"], err = json.Marshal(own); err != nil {
		return nil, err
	}
	return json.Marshal(top)
}

// allocations returns the blocks with pods, each followed by its affinity, and then the handles of the pods.
func (c Cluster) allocations() []*model.Object {
	var list, handles []*model.Object
	blocks := map[string]*model.Block{}
	for i := range c.Pods {
		node, nth := c.place(i)
		cidr := c.blockOf(node, nth>>6)
		b := blocks[cidr.String()]
		if b == nil {
			a := model.Affinity{Type: model.AffinityHost, Host: nodeName(node), CIDR: cidr}
			owner := a.String()
			b = &model.Block{CIDR: cidr, Affinity: &owner, Allocations: make([]*int, 64),
				SequenceNumber:              1_790_000_000_000_000_000,
				SequenceNumberForAllocation: map[string]uint64{}}
			blocks[cidr.String()] = b
			list = append(list, model.NewObject(model.BlockKey(cidr), b),
				model.NewObject(model.AffinityKey(a), &model.BlockAffinity{State: model.StateConfirmed}))
		}
		id := "k8s-pod-network." + container(i)
		namespace, name := c.PodName(i)
		at := len(b.Attributes)
		b.Allocations[nth&63] = &at
		b.SequenceNumberForAllocation[fmt.Sprint(nth&63)] = b.SequenceNumber + uint64(at)
		b.Attributes = append(b.Attributes, model.BlockAttribute{
			HandleID: &id, Secondary: map[string]string{"namespace": namespace,
				"node": nodeName(node), "pod": name, "timestamp": "2026-11-01 00:00:00.000000000 +0000 UTC"}})
		handles = append(handles, model.NewObject(model.HandleKey(id),
			&model.Handle{Block: map[string]int{cidr.String(): 1}}))
	}
	for _, b := range blocks {
		for ordinal, used := range b.Allocations {
			if used == nil {
				b.Unallocated = append(b.Unallocated, ordinal)
			}
		}
	}
	return append(list, handles...)
}

// writer puts values into etcd, many at a time.
type writer struct {
	client *clientv3.Client
	ctx    context.Context
	group  *errgroup.Group
	ops    []clientv3.Op
	size   int
}

func newWriter(ctx context.Context, client *clientv3.Client) *writer {
	w := &writer{client: client}
	w.group, w.ctx = errgroup.WithContext(ctx)
	w.group.SetLimit(4)
	return w
}

func (w *writer) fail(err error) { w.group.Go(func() error { return err }) }

// etcd takes up to 128 operations and 1.5 MB at once.
func (w *writer) put(key, value string) {
	if len(w.ops) == 128 || w.size+len(value) > 1<<20 {
		w.flush()
	}
	w.ops, w.size = append(w.ops, clientv3.OpPut(key, value)), w.size+len(value)
}

func (w *writer) flush() {
	ops := w.ops
	w.ops, w.size = nil, 0
	if len(ops) == 0 {
		return
	}
	w.group.Go(func() error {
		_, err := w.client.Txn(w.ctx).Then(ops...).Commit()
		return err
	})
}

func (w *writer) end() error {
	w.flush()
	return w.group.Wait()
}
