package main

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/etcd/etcdtest"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/ipam"
)

// unreliable is a datastore whose next request of some objects times out.
type unreliable struct {
	datastore.Store
	get, create string // names of the objects; empty: of none
}

var errTimeout = errors.New("etcdserver: request timed out")

func (u *unreliable) Get(ctx context.Context, k model.Key) (*model.Object, error) {
	if k.Name == u.get {
		u.get = ""
		return nil, errTimeout
	}
	return u.Store.Get(ctx, k)
}

func (u *unreliable) Create(ctx context.Context, o *model.Object) (*model.Object, error) {
	if o.Key.Name == u.create {
		u.create = ""
		return nil, errTimeout
	}
	return u.Store.Create(ctx, o)
}

// filled is a datastore with the pool "pods", and an address of it on node n1.
func filled(t *testing.T, server *etcdtest.Server) datastore.Store {
	t.Helper()
	s := server.Store(t)
	for _, o := range []*model.Object{
		model.NewObject(model.ResourceKey(model.KindIPPool, "pods"),
			&model.IPPool{Spec: model.IPPoolSpec{CIDR: "10.99.0.0/24", BlockSize: 26}}),
		model.NewObject(model.ResourceKey(model.KindNode, "n1"), &model.Node{})} {
		if _, err := s.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	if err := ipam.New(s, nil, nil).AssignIP(t.Context(), ipam.AddressRequest{
		Address: netip.MustParseAddr("10.99.0.1"), Host: "n1", Handle: "h"}); err != nil {
		t.Fatal(err)
	}
	return s
}

func lock(t *testing.T, s datastore.Store) {
	t.Helper()
	no := false
	if _, err := s.Create(t.Context(), model.NewObject(model.ResourceKey(model.KindClusterInformation, "default"),
		&v3.ClusterInformation{Spec: v3.ClusterInformationSpec{DatastoreReady: &no}})); err != nil {
		t.Fatal(err)
	}
}

// A request that fails ends the command before something is lost, and the command can be repeated.
func TestAFailedRequestLosesNothing(t *testing.T) {
	t.Parallel()
	t.Run("deletion of a pool", func(t *testing.T) {
		s := filled(t, etcdtest.Start(t))
		key := model.ResourceKey(model.KindIPPool, "pods")
		if _, err := deleteObject(t.Context(), &unreliable{Store: s, get: "pods"}, key); !errors.Is(err, errTimeout) {
			t.Errorf("the deletion ends with %v", err)
		}
		if _, err := s.Get(t.Context(), key); err != nil {
			t.Errorf("the pool is gone, its affinities are not: %v", err)
		}
	})
	t.Run("split of a pool", func(t *testing.T) {
		s := filled(t, etcdtest.Start(t))
		lock(t, s)
		c := &cli{out: &bytes.Buffer{}, err: &bytes.Buffer{}}
		is := func(o *model.Object) bool { return o.Key.Name == "pods" }
		for _, first := range []string{"split-pods-0", "split-pods-1"} {
			u := &unreliable{Store: s, create: first}
			if err := c.splitPool(t.Context(), u, is, 2); !errors.Is(err, errTimeout) {
				t.Errorf("%s: %v", first, err)
			}
		}
		if err := c.splitPool(t.Context(), s, is, 2); err != nil {
			t.Error(err)
		}
		pools, _, err := s.List(t.Context(), model.KindIPPool, "")
		if err != nil || len(pools) != 2 {
			t.Errorf("%d pools, %v", len(pools), err)
		}
		for _, o := range pools {
			if p := o.Value.(*model.IPPool); p.Spec.Disabled || len(p.Annotations) > 0 {
				t.Errorf("%s is disabled: %t, annotations %v", o.Key, p.Spec.Disabled, p.Annotations)
			}
		}
	})
	t.Run("import of a node", func(t *testing.T) {
		s := etcdtest.Start(t).Store(t)
		c := &cli{out: &bytes.Buffer{}, err: &bytes.Buffer{}}
		n := model.NewObject(model.ResourceKey(model.KindNode, "n1"), &model.Node{})
		err := c.importAll(t.Context(), &unreliable{Store: s, create: "n1"}, exportContent{objects: []*model.Object{n}})
		if err == nil {
			t.Error("a node was lost without an error")
		}
	})
	t.Run("import", func(t *testing.T) {
		server := etcdtest.Start(t)
		from := filled(t, server)
		lock(t, from)
		text, err := export(t.Context(), from)
		if err != nil {
			t.Fatal(err)
		}
		read := func() exportContent {
			x, err := parseExport(text)
			if err != nil {
				t.Fatal(err)
			}
			return x
		}
		to := etcdtest.Start(t).Store(t)
		c := &cli{out: &bytes.Buffer{}, err: &bytes.Buffer{}}
		bad := read()
		bad.objects = append(bad.objects, model.NewObject(model.ResourceKey(model.KindGlobalNetworkPolicy, "web"),
			&v3.GlobalNetworkPolicy{Spec: v3.GlobalNetworkPolicySpec{Tier: "none", Selector: "all()"}}))
		if err := c.importAll(t.Context(), to, bad); err == nil {
			t.Error("a policy without its tier was imported")
		}
		for _, k := range model.Kinds() {
			if there, _, err := to.List(t.Context(), k.Kind, ""); err != nil || len(there) > 0 {
				t.Errorf("a refused import wrote %v, %v", there, err)
			}
		}
		bad.objects = append(bad.objects, model.NewObject(model.ResourceKey(model.KindTier, "none"), &model.Tier{}))
		if _, errs := importInto(t.Context(), newDryStore(to), bad); len(errs) != 1 {
			t.Errorf("the tier behind its policy: %v", errs)
		}
		bad.arrange()
		if _, errs := importInto(t.Context(), newDryStore(to), bad); len(errs) > 0 {
			t.Errorf("the tier before its policy: %v", errs)
		}
		block := read().records[1].Key.Name
		if err := c.importAll(t.Context(), &unreliable{Store: to, create: block}, read()); err == nil {
			t.Error("the failed write of a block is no error")
		}
		if err := c.importAll(t.Context(), to, read()); err != nil {
			t.Errorf("the import is not taken up: %v: %s", err, c.err)
		}
		again, err := export(t.Context(), to)
		is, was := strings.Split(string(again), exportEnd), strings.Split(string(text), exportEnd)
		if err != nil || is[0] != was[0] || is[2] != was[2] { // the ClusterInformation has a revision
			t.Errorf("imported\n%s\nof\n%s", again, text)
		}
	})
}

// The address of an endpoint that this release cannot read is in use.
func TestAddressesOfUnreadableObjectsAreKept(t *testing.T) {
	t.Parallel()
	server := etcdtest.Start(t)
	s := filled(t, server)
	if _, err := server.Client(t).Put(t.Context(),
		"/calico/resources/v3/projectcalico.org/workloadendpoints/shop/n1-k8s-web-eth0",
		`{"kind":"WorkloadEndpoint","apiVersion":"projectcalico.org/v3","metadata":{"name":"n1-k8s-web-eth0",
			"namespace":"shop"},"spec":{"orchestrator":"k8s","node":"n1","pod":"web","endpoint":"eth0",
			"ipNetworks":["10.99.0.1/32"],"interfaceName":"cali1","ports":"new form"}}`); err != nil {
		t.Fatal(err)
	}
	c := &cli{out: &bytes.Buffer{}, err: &bytes.Buffer{}}
	err := c.releaseAddress(t.Context(), s, netip.MustParseAddr("10.99.0.1"), false)
	if err == nil || !strings.Contains(err.Error(), "shop/n1-k8s-web-eth0") {
		t.Errorf("the release ends with %v", err)
	}
}

// A pool with a mistake, which no node uses, can be deleted.
func TestAPoolWithAMistakeIsDeleted(t *testing.T) {
	t.Parallel()
	server := etcdtest.Start(t)
	s := server.Store(t)
	if _, err := server.Client(t).Put(t.Context(), "/calico/resources/v3/projectcalico.org/ippools/bad",
		`{"kind":"IPPool","apiVersion":"projectcalico.org/v3","metadata":{"name":"bad"},
			"spec":{"cidr":"10.4.0.0/24","blockSize":26,"nodeSelector":"!!bad("}}`); err != nil {
		t.Fatal(err)
	}
	if _, err := deleteObject(t.Context(), s, model.ResourceKey(model.KindIPPool, "bad")); err != nil {
		t.Error(err)
	}
}

// Lines of an annotation may have the separator of an export inside.
func TestSeparatorInsideAnExport(t *testing.T) {
	t.Parallel()
	s := filled(t, etcdtest.Start(t))
	o, err := s.Get(t.Context(), model.ResourceKey(model.KindIPPool, "pods"))
	if err != nil {
		t.Fatal(err)
	}
	o = o.Clone()
	o.Metadata().SetAnnotations(map[string]string{"note": "Title\n=====\ntext"})
	if _, err := s.Update(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	lock(t, s)
	text, err := export(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	if x, err := parseExport(text); err != nil || len(x.objects) != 2 {
		t.Errorf("%d objects, %v", len(x.objects), err)
	}
}
