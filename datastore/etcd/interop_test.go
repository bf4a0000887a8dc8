package etcd_test

import (
	"encoding/json"
	"testing"
	"unicode/utf8"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/etcd"
	"github.com/manxnet/manx/datastore/etcd/etcdtest"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/integration/jsonlines"
)

// stored returns the keys and values that Calico's own programs left in etcd.
func stored(t *testing.T) map[string]string {
	t.Helper()
	values := map[string]string{}
	for _, entry := range jsonlines.Read[struct{ Key, Raw string }](t, "../codec/testdata/objects.jsonl") {
		values[entry.Key] = entry.Raw
	}
	if len(values) < 100 {
		t.Fatalf("only %d values", len(values))
	}
	// Keys of other programs stand between those of Manx.
	values["/calico/felix/v2/no-region/host/h1/last_reported_status"] = `{"time":"2026-11-20T23:03:44Z","uptime":30.1,"first_update":false}`
	values["/calico/resources/v3/projectcalico.org/remoteclusterconfigurations/west"] = `{"kind":"RemoteClusterConfiguration","apiVersion":"projectcalico.org/v3","metadata":{"name":"west"},"spec":{}}`
	return values
}

func allKinds() (kinds []model.Kind) {
	for _, info := range model.Kinds() {
		kinds = append(kinds, info.Kind)
	}
	return kinds
}

func TestWhatCalicoWroteOnEmbeddedServer(t *testing.T) {
	server := etcdtest.Start(t)
	checkCalicoObjects(t, server.Store(t), server.Client(t))
}

func TestWhatCalicoWroteOnDistributionServer(t *testing.T) {
	members := startCluster(t, 1)
	checkCalicoObjects(t, open(t, etcd.Config{Endpoints: endpoints(members...)}), plainClient(t, members...))
}

// A plain client stores the values that Calico wrote; all of them are read, listed and watched. The plain client finds
// the same bytes after an unchanged write, and after a deletion and creation.
func checkCalicoObjects(t *testing.T, s *etcd.Store, raw *clientv3.Client) {
	ctx := t.Context()
	values := stored(t)
	count := map[model.Kind]int{}
	for path, value := range values {
		if _, err := raw.Put(ctx, path, value); err != nil {
			t.Fatal(err)
		}
		if key, ok, err := etcd.ParsePath(path); err != nil {
			t.Errorf("%s: %v", path, err)
		} else if ok {
			count[key.Kind]++
		}
	}
	tables := datastore.NewTables(zap.NewNop(), "")
	go tables.Run(ctx, s, allKinds()...)
	snapshot, err := tables.WaitInSync(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for q := range snapshot.Quarantined() {
		t.Errorf("quarantined: %v", q.Object.Err)
	}
	for _, kind := range allKinds() {
		objects, _, err := s.List(ctx, kind, "")
		if err != nil {
			t.Fatal(err)
		}
		// that was not recorded on etcd
		if len(objects) != count[kind] || count[kind] == 0 && kind != model.KindCalicoNodeStatus {

			t.Errorf("%s: %d are listed, want %d", kind, len(objects), count[kind])
		}
		for _, o := range objects {
			if snapshot.Get(o.Key) == nil {
				t.Errorf("%s is listed, but not watched", o.Key)
			}
			writeBack(t, s, raw, o, values)
		}
	}
	all, err := raw.Get(ctx, etcd.Root, clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	if len(all.Kvs) != len(values) {
		t.Errorf("%d keys are left of %d", len(all.Kvs), len(values))
	}
	for _, kv := range all.Kvs {
		if want := values[string(kv.Key)]; want != string(kv.Value) {
			t.Errorf("%s became\n%s\nwas\n%s", kv.Key, kv.Value, want)
		}
	}
}

func writeBack(t *testing.T, s *etcd.Store, raw *clientv3.Client, o *model.Object, values map[string]string) {
	t.Helper()
	path, err := etcd.Path(o.Key)
	if err != nil {
		t.Fatal(err)
	}
	same := func(what string) {
		t.Helper()
		resp, err := raw.Get(t.Context(), path)
		if err != nil || len(resp.Kvs) != 1 {
			t.Fatalf("%s: %v, %v", path, resp, err)
		}
		if got := string(resp.Kvs[0].Value); got != values[path] {
			t.Errorf("%s %s\n%s\nwas\n%s", what, path, got, values[path])
		}
	}
	updated, err := s.Update(t.Context(), o)
	if err != nil {
		t.Error(err)
		return
	}
	same("update of")
	deleted, err := s.Delete(t.Context(), o.Key, updated.Revision)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Create(t.Context(), deleted); err != nil {
		t.Error(err)
	}
	same("creation of")
}

// Another program writes any value at a key of Manx. The object is quarantined with the reason, all other objects work,
// and the object is used again when the value is valid.
func TestMalformedValuesAtEveryKind(t *testing.T) {
	server := etcdtest.Start(t)
	s, raw := server.Store(t), server.Client(t)
	ctx := t.Context()
	tables := datastore.NewTables(zap.NewNop(), "")
	go tables.Run(ctx, s, allKinds()...)
	healthy := create(t, s, peer("healthy", "10.0.0.1"))

	example := map[model.Kind][2]string{ // path and value
		model.KindCalicoNodeStatus: {"/calico/resources/v3/projectcalico.org/caliconodestatuses/zz",
			`{"kind":"CalicoNodeStatus","apiVersion":"projectcalico.org/v3","metadata":{"name":"zz"},"spec":{"node":"n","classes":["BGP"],"updatePeriodSeconds":10}}`},
	}
	for path, value := range stored(t) {
		key, ok, _ := etcd.ParsePath(path)
		if old, seen := example[key.Kind]; ok && (!seen || path < old[0]) {
			example[key.Kind] = [2]string{path, value}
		}
	}
	put := func(path, value string) int64 {
		t.Helper()
		resp, err := raw.Put(ctx, path, value)
		if err != nil {
			t.Fatal(err)
		}
		return resp.Header.Revision
	}
	// at waits for the snapshot of a revision.
	at := func(revision int64) *datastore.Snapshot {
		t.Helper()
		for snapshot := tables.Snapshot(); ; {
			if snapshot.Revision() >= revision {
				return snapshot
			}
			var err error
			if snapshot, err = tables.Wait(ctx, snapshot); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, kind := range allKinds() {
		path, value := example[kind][0], example[kind][1]
		key, _, _ := etcd.ParsePath(path)
		for what, bad := range map[string]string{
			"truncated":   value[:len(value)/2],
			"no JSON":     "\x00\xff\xfe",
			"an array":    "[1,2]",
			"a number":    "7",
			"a string":    `"x"`,
			"two values":  value + value,
			"wrong types": `{"spec":7,"metadata":"x","block":9,"cidr":1,"state":{},"strict_affinity":"x"}`,
		} {
			snapshot := at(put(path, bad))
			if snapshot.Get(key) != nil {
				t.Errorf("%s: %s is used", key, what)
			}
			var reason error
			for q := range snapshot.Quarantined() {
				if q.Object.Key == key {
					reason = q.Object.Err
				}
			}
			if reason == nil {
				t.Errorf("%s: %s is not in quarantine", key, what)
			}
			if o, err := s.Get(ctx, key); err != nil || o.Err == nil {
				t.Errorf("get %s: %s gives %v, %v", key, what, o, err)
			}
			if snapshot.Get(healthy.Key) == nil {
				t.Errorf("%s: %s takes others with it", key, what)
			}
		}
		snapshot := at(put(path, value))
		if snapshot.Get(key) == nil {
			t.Errorf("%s is valid again, but not used", key)
		}
		for q := range snapshot.Quarantined() {
			t.Errorf("%s is still in quarantine", q.Object.Key)
		}
		if _, err := s.Delete(ctx, key, 0); err != nil {
			t.Error(err)
		}
	}
	odd := put("/calico/ipam/v2/assignment/ipv4/block/not-a-block", "{}")
	put("/calico/resources/v3/projectcalico.org/workloadendpoints/no-namespace", "{}")
	put("/calico/resources/v3/projectcalico.org/cows/elsie", "moo")
	put("/calico/resources/v3/projectcalico.org/bgppeers/", "{}")
	// A name that no answer and no metric can hold.
	binary := model.ResourceKey(model.KindTier, "x\xff")
	last := put("/calico/resources/v3/projectcalico.org/tiers/x\xff", "{}")
	if o := at(last).Get(binary); o != nil {
		t.Errorf("%q is used", o.Key)
	}
	n := 0
	for q := range at(last).Quarantined() {
		n++
		if !utf8.ValidString(q.Object.Err.Error()) {
			t.Errorf("a reason is not valid UTF-8: %q", q.Object.Err)
		}
	}
	if n < 2 {
		t.Errorf("%d of the invalid keys are in quarantine since revision %d", n, odd)
	}
}

// Fields that a newer Calico wrote survive an update by a writer that never read them.
func TestUpdateKeepsFieldsThatItDoesNotKnow(t *testing.T) {
	server := etcdtest.Start(t)
	s, raw := server.Store(t), server.Client(t)
	a := create(t, s, peer("a", "10.0.0.1"))
	path, _ := etcd.Path(a.Key)
	value := string(a.Raw)
	value = value[:len(value)-1] + `,"future":{"x":12345678901234567890}}`
	resp, err := raw.Put(t.Context(), path, value)
	if err != nil {
		t.Fatal(err)
	}
	fresh := peer("a", "10.0.0.9")
	fresh.Revision = resp.Header.Revision
	if _, err := s.Update(t.Context(), fresh); err != nil {
		t.Fatal(err)
	}
	got, err := raw.Get(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	var read struct {
		Future   struct{ X json.Number }
		Metadata struct{ UID string }
		Spec     struct{ PeerIP string }
	}
	if err := json.Unmarshal(got.Kvs[0].Value, &read); err != nil {
		t.Fatal(err)
	}
	if read.Future.X != "12345678901234567890" || read.Metadata.UID != string(a.Metadata().GetUID()) ||
		read.Spec.PeerIP != "10.0.0.9" {
		t.Errorf("stored: %s", got.Kvs[0].Value)
	}
}

// A list of many pages is of one revision, complete and in order, in spite of concurrent writes.
func TestListOfManyPagesIsOfOneRevision(t *testing.T) {
	server := etcdtest.Start(t)
	s := server.Store(t)
	fillNodes(t, server.Client(t), 1700)
	stop := make(chan struct{})
	done := make(chan error)
	go func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				done <- nil
				return
			default:
			}
			if _, err := s.Create(t.Context(), peer("x", "10.0.0.1")); err != nil {
				done <- err
				return
			}
			if _, err := s.Delete(t.Context(), peer("x", "").Key, 0); err != nil {
				done <- err
				return
			}
		}
	}()
	for range 5 {
		objects, revision, err := s.List(t.Context(), model.KindNode, "")
		if err != nil {
			t.Fatal(err)
		}
		if len(objects) != 1700 {
			t.Fatalf("%d objects", len(objects))
		}
		for i, o := range objects {
			if i > 0 && objects[i-1].Key.Name >= o.Key.Name || o.Revision > revision || o.Err != nil {
				t.Fatalf("object %d: %+v", i, o)
			}
		}
	}
	close(stop)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func TestListOfOneOwnersAffinities(t *testing.T) {
	server := etcdtest.Start(t)
	s, raw := server.Store(t), server.Client(t)
	for _, path := range []string{"host/n1/ipv4/block/10.0.0.0-26", "host/n10/ipv4/block/10.0.1.0-26",
		"host/n1/ipv6/block/fd00::-122", "virtual/load-balancer/ipv4/block/10.1.0.0-26"} {
		if _, err := raw.Put(t.Context(), "/calico/ipam/v2/"+path, `{"state":"confirmed"}`); err != nil {
			t.Fatal(err)
		}
	}
	for owner, want := range map[string]int{"": 4, "host/n1": 2, "host/n10": 1, "virtual/load-balancer": 1,
		"host/none": 0} {
		if objects, _, err := s.List(t.Context(), model.KindBlockAffinity, owner); err != nil || len(objects) != want {
			t.Errorf("%q: %d, %v, want %d", owner, len(objects), err, want)
		}
	}
}

func TestApplyIsForTheIPAMConfiguration(t *testing.T) {
	s := etcdtest.Start(t).Store(t)
	o := model.NewObject(model.IPAMConfigKey, &model.IPAMConfig{AutoAllocateBlocks: true})
	first, err := s.Apply(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	second, err := s.Apply(t.Context(), o)
	if err != nil || second.Revision <= first.Revision {
		t.Fatal(second, err)
	}
	if _, err := s.Apply(t.Context(), peer("a", "10.0.0.1")); err == nil {
		t.Error("a peer was applied")
	}
}
