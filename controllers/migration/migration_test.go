package migration

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/manxnet/manx/datastore/kubernetes/form"
	"github.com/manxnet/manx/datastore/model"
)

// older has an object of each kind, by kind: name, metadata as users see it, spec, and the spec in the newer group if
// that is another one.
var older = []struct {
	kind                       model.Kind
	name, folded, spec, copied string
}{
	{model.KindTier, "web", `{"name":"web"}`, `{"defaultAction":"Pass","order":5}`, ""},
	{model.KindFelixConfiguration, "default", "", `{"bpfEnabled":false,"unknownField":{"a":[1,2]}}`, ""},
	{model.KindBGPConfiguration, "default", "", `{"asNumber":64512}`, ""},
	{model.KindKubeControllers, "default", "", `{"controllers":{"node":{}}}`, ""},
	{model.KindIPPool, "pods", `{"labels":{"rack":"1"},"annotations":{"a":"b"}}`,
		`{"allowedUses":["Workload"],"blockSize":26,"cidr":"10.9.0.0/16","ipipMode":"Always","natOutgoing":true,` +
			`"nodeSelector":"all()","vxlanMode":"Never"}`, ""},
	{model.KindIPReservation, "kept", "", `{"reservedCIDRs":["10.9.0.8/29"]}`, ""},
	{model.KindBGPPeer, "tor", "", `{"asNumber":65000,"peerIP":"10.0.0.1"}`, ""},
	{model.KindBGPFilter, "some", "", `{"exportV4":[{"action":"Accept","cidr":"10.0.0.0/8","matchOperator":"In"}]}`, ""},
	{model.KindGlobalNetworkPolicy, "default.deny", `{}`, `{"selector":"all()","tier":"default","types":["Ingress"]}`, ""},
	{model.KindNetworkPolicy, "default.in", `{"name":"in","labels":{"l":"m"}}`,
		`{"selector":"app == 'a'","tier":"default","types":["Ingress"]}`, ""},
	{model.KindStagedGlobalNetworkPolicy, "web.later", `{"name":"web.later"}`,
		`{"selector":"all()","stagedAction":"Set","tier":"web","types":["Ingress"]}`, ""},
	{model.KindStagedNetworkPolicy, "web.later", `{"name":"web.later"}`,
		`{"selector":"all()","stagedAction":"Set","tier":"web","types":["Ingress"]}`, ""},
	{model.KindStagedKubernetesNetworkPolicy, "later", "", `{"podSelector":{},"stagedAction":"Set"}`, ""},
	{model.KindHostEndpoint, "n1", "", `{"expectedIPs":["10.0.0.2"],"node":"n1"}`, ""},
	{model.KindGlobalNetworkSet, "bad", "", `{"nets":["192.0.2.0/24"]}`, ""},
	{model.KindNetworkSet, "bad", "", `{"nets":["192.0.2.0/24"]}`, ""},
	{model.KindIPAMConfiguration, "default", "", `{"autoAllocateBlocks":true,"maxBlocksPerHost":4,"strictAffinity":true}`,
		""},
	{model.KindBlockAffinity, "n1-10-9-0-0-26", "",
		`{"cidr":"10.9.0.0/26","deleted":"false","node":"n1","state":"confirmed","type":"host"}`,
		`{"cidr":"10.9.0.0/26","deleted":false,"node":"n1","state":"confirmed","type":"host"}`},
	{model.KindIPAMBlock, "10-9-0-0-26", "", `{"affinity":"host:n1","allocations":[0,null],"attributes":[{"handle_id":` +
		`"k8s-pod-network.AB","secondary":{"node":"n1"}}],"cidr":"10.9.0.0/26","deleted":false,"sequenceNumber":7,` +
		`"sequenceNumberForAllocation":{"0":6},"strictAffinity":false,"unallocated":[1]}`, ""},
	{model.KindIPAMHandle, "k8s-pod-network.ab", "",
		`{"block":{"10.9.0.0/26":1},"deleted":false,"handleID":"k8s-pod-network.AB"}`, ""},
	{model.KindCalicoNodeStatus, "n1", "", `{"classes":["BGP"],"node":"n1","updatePeriodSeconds":10}`, ""},
}

// newName is the name in the newer group.
func newName(name string) string { return strings.TrimPrefix(name, "default.") }

func namespaceOf(k model.Kind) string {
	if r, _ := form.CustomResource(form.V1, k); r.Namespaced {
		return "shop"
	}
	return ""
}

// add stores an object of the older group.
func (w *world) add(k model.Kind, name, folded, spec string) *Object {
	w.Helper()
	r, _ := form.CustomResource(form.V1, k)
	annotations := ""
	if folded != "" {
		annotations = fmt.Sprintf(`,"annotations":{"projectcalico.org/metadata":%q}`, folded)
	}
	return w.put(pathOf(form.V1, k, namespaceOf(k), ""), fmt.Sprintf(`{"apiVersion":%q,"kind":%q,"metadata":{"name":%q,
		"namespace":%q,"creationTimestamp":"2025-01-01T00:00:00Z"%s},"spec":%s}`, form.V1, r.Kind, name, namespaceOf(k),
		annotations, spec))
}

// filled is a world with an object of each kind in the older group.
func filled(t *testing.T) *world {
	w := newWorld(t)
	for _, o := range older {
		w.add(o.kind, o.name, o.folded, o.spec)
	}
	w.put("/apis/"+string(form.V1)+"/"+information, `{"apiVersion":"crd.projectcalico.org/v1",
		"kind":"ClusterInformation","metadata":{"name":"default"},"spec":{"clusterGUID":"g","datastoreReady":true}}`)
	w.ask()
	return w
}

// checkCopied fails the test unless the newer group has exactly the objects of the older one.
func (w *world) checkCopied() {
	w.Helper()
	for _, o := range older {
		want := o.copied
		if want == "" {
			want = o.spec
		}
		name := o.name
		if slices.Contains(model.PolicyKinds(), o.kind) {
			name = newName(name)
		}
		if got := w.spec(pathOf(form.V3, o.kind, namespaceOf(o.kind), name)); got != want {
			w.Errorf("%s %s: %s\nwant %s", o.kind, name, got, want)
		}
	}
	n := 0
	for path := range w.objects {
		if strings.HasPrefix(path, "/apis/"+string(form.V3)) {
			n++
		}
	}
	if n != len(older)+1 { // ClusterInformation
		w.Errorf("the newer group has %d objects, want %d", n, len(older)+1)
	}
}

// checkUntouched fails the test unless everything is as before the migration.
func (w *world) checkUntouched() {
	w.Helper()
	for path := range w.objects {
		if strings.HasPrefix(path, "/apis/"+string(form.V3)) || strings.HasPrefix(path, migrationPath) {
			w.Errorf("%s is left", path)
		}
	}
	if w.locked(form.V1) {
		w.Error("the older group is locked")
	}
	for _, o := range older {
		if got := w.spec(pathOf(form.V1, o.kind, namespaceOf(o.kind), o.name)); got != o.spec {
			w.Errorf("%s %s: %s", o.kind, o.name, got)
		}
	}
}

// guard checks after each write that no group is open while only a part of the objects is in the newer one.
func (w *world) guard() {
	w.after = func() {
		o, copies, objects := w.objects[migrationPath], 0, 0
		if o == nil {
			return
		}
		m := new(migration)
		if err := m.set(o); err != nil {
			w.Fatal(err)
		}
		for path, o := range w.objects {
			switch {
			case strings.HasSuffix(path, infoPath):
			case o.GetAnnotations()[createdBy] != "":
				copies++
			case strings.HasPrefix(path, "/apis/"+string(form.V1)):
				objects++
			}
		}
		done := m.status.Phase == converged || m.status.Phase == complete
		older, newer := w.locked(form.V1), w.locked(form.V3)
		switch {
		case done && copies < objects:
			w.Errorf("%s with %d copies of %d objects", m.status.Phase, copies, objects)
		case !done && copies > 0 && !(older && newer):
			w.Errorf("%s with %d copies: locked are the older group %v, the newer group %v", m.status.Phase, copies,
				older, newer)
		case done && !older && w.objects[olderInfo] != nil:
			w.Errorf("the older group is open, and the migration %s", m.status.Phase)
		}
	}
}

// A migration copies an object of each kind, and ends with the deletion of the older group.
func TestMigration(t *testing.T) {
	w := filled(t)
	w.guard()
	w.behind = "1 of 2 nodes to report it: n2"
	w.run()
	w.want(converged, "projectcalico.org/v3 is in use. Waiting for 1 of 2 nodes to report it: n2")
	w.checkCopied()
	if w.locked(form.V3) || !w.locked(form.V1) {
		t.Error("want the newer group open, and the older one locked")
	}
	p := w.state().Progress
	if p.TypeProgress != "21 / 21" || p.Migrated != len(older) || p.Total != len(older) || p.CurrentType != "" ||
		len(p.TypeDetails) != len(kinds) {
		t.Errorf("progress: %+v", p)
	}
	pool := w.get(pathOf(form.V3, model.KindIPPool, "", "pods"))
	made := pool.GetCreationTimestamp()
	if pool.GetLabels()["rack"] != "1" || pool.GetAnnotations()["a"] != "b" ||
		pool.GetAnnotations()["projectcalico.org/metadata"] != "" || !made.IsZero() {
		t.Errorf("metadata of the copy of a pool: %v", pool.Object["metadata"])
	}

	w.withdraw()
	w.run()
	w.want(converged, "The deletion waits, since there is no way back from Converged")
	w.behind = ""
	w.after = func() {
		if o := w.objects[migrationPath]; o != nil && strings.Contains(fmt.Sprint(o.Object["status"]), complete) {
			w.behind = "1 of 2 nodes to report it: n2" // it came at this moment
		}
	}
	w.run()
	w.want(complete, "The definitions of crd.projectcalico.org are not deleted yet: waiting for 1 of 2 nodes")
	w.after, w.behind = nil, ""
	w.run()
	if o := w.get(migrationPath); o != nil {
		t.Errorf("the migration is left: %v", o)
	}
	for path := range w.objects {
		if strings.Contains(path, olderGroup) {
			t.Errorf("%s is left", path)
		}
	}
	w.checkCopied()
	text := `# HELP calico_migration_resource_errors_total Steps of a DatastoreMigration that failed and are tried again.
# TYPE calico_migration_resource_errors_total counter
calico_migration_resource_errors_total 0
`
	if err := testutil.CollectAndCompare(&w.metrics, strings.NewReader(text),
		"calico_migration_resource_errors_total"); err != nil {
		t.Error(err)
	}
	if n := w.metrics.objects[[2]string{"IPPool", "migrated"}]; n != 1 {
		t.Errorf("%v pools are counted", n)
	}
}

// cuts runs a test for each number of writes after which a process ends, with and without an effect of the last one.
func cuts(t *testing.T, run func(w *world, first *process)) {
	for _, early := range []bool{false, true} {
		for n, more := 1, true; more; n++ {
			w := filled(t)
			w.guard()
			p := &process{world: w, left: n, early: early}
			run(w, p)
			if more = p.dead; t.Failed() {
				t.Fatalf("after the end at write %d (without an effect: %v)", n, early)
			}
			if n > 200 {
				t.Fatal("a migration does not end after 200 writes")
			}
		}
	}
}

// A process may end at any write. The next one goes on: nothing is lost or doubled, and both groups stay locked until
// everything is copied.
func TestEndAtEachWrite(t *testing.T) {
	cuts(t, func(w *world, first *process) {
		w.live(first)
		w.run()
		w.want(complete, "All agents use projectcalico.org/v3")
		w.checkCopied()
	})
}

// A process may end at any write also while a deleted migration is taken back, whenever it was deleted.
func TestEndWhileTakenBack(t *testing.T) {
	for _, before := range []int{1, 2, 4, 9, 20, 40} {
		cuts(t, func(w *world, p *process) {
			w.live(&process{world: w, left: before})
			if s := w.state(); s.Phase == converged || s.Phase == complete {
				w.Fatalf("%d writes are too many", before)
			}
			w.withdraw()
			w.live(p)
			w.run()
			w.checkUntouched()
		})
	}
}

// An object that the newer group has with another spec stops the migration before anything is locked, and one that
// comes later while both groups are locked. A user resolves both.
func TestConflicts(t *testing.T) {
	w := filled(t)
	w.guard()
	path := pathOf(form.V3, model.KindIPPool, "", "pods")
	theirs := `{"apiVersion":"projectcalico.org/v3","kind":"IPPool","metadata":{"name":"pods"},
		"spec":{"cidr":"10.8.0.0/16"}}`
	w.put(place(form.V3, model.KindIPPool), theirs)
	w.run()
	w.want(waiting, "Nothing is locked yet. 1 objects differ")
	s := w.state()
	if len(s.Conditions) != 1 || s.Conditions[0].Type != "Conflict" || s.Conditions[0].Reason != "ResourceMismatch" ||
		s.Conditions[0].Message != "IPPool/pods: projectcalico.org/v3 has it with another spec" {
		t.Errorf("conditions: %+v", s.Conditions)
	}
	if w.locked(form.V1) {
		t.Error("the datastore is locked for as long as a user thinks")
	}
	since := s.Conditions[0].LastTransitionTime
	w.run()
	if again := w.state().Conditions; len(again) != 1 || !again[0].LastTransitionTime.Equal(&since) {
		t.Errorf("the time of an unchanged condition changes: %+v", again)
	}
	w.remove(path)

	// Another writer is faster in the middle of the copy.
	guard := w.after
	w.after = func() {
		guard()
		if w.objects[pathOf(form.V3, model.KindBGPConfiguration, "", "default")] != nil && w.objects[path] == nil {
			o := new(Object)
			if err := o.UnmarshalJSON([]byte(theirs)); err != nil {
				t.Error(err)
			}
			w.store(path, o, 1)
		}
	}
	w.run()
	w.want(waiting, "The datastore is locked. 1 objects differ")
	w.after = guard
	if got := w.spec(path); got != `{"cidr":"10.8.0.0/16"}` {
		t.Errorf("an object of somebody else was changed: %s", got)
	}
	w.remove(path)
	w.run()
	w.want(complete, "")
	if s := w.state(); len(s.Conditions) != 0 {
		t.Errorf("conditions are left: %+v", s.Conditions)
	}
	w.checkCopied()
}

// Of numerous conflicts, as many are listed as the definition permits.
func TestManyConflicts(t *testing.T) {
	w := filled(t)
	for i := range 40 {
		name := fmt.Sprintf("set-%02d", i)
		w.add(model.KindGlobalNetworkSet, name, "", `{"nets":["192.0.2.0/24"]}`)
		w.put(place(form.V3, model.KindGlobalNetworkSet), fmt.Sprintf(`{"apiVersion":"projectcalico.org/v3",
			"kind":"GlobalNetworkSet","metadata":{"name":%q},"spec":{}}`, name))
	}
	w.run()
	w.want(waiting, "40 objects differ")
	list := w.state().Conditions
	if len(list) != 33 || list[32].Reason != "ConflictsOmitted" || list[32].Message != "8 more" {
		t.Errorf("%d conditions, the last one %+v", len(list), list[len(list)-1])
	}
}

// Defaults that the API sets make no conflict: neither with the copies, nor with objects of somebody else.
func TestDefaultsAreNoConflict(t *testing.T) {
	w := filled(t)
	w.defaults = func(o *Object) {
		if spec, ok := o.Object["spec"].(map[string]any); ok && o.GetKind() == "BGPPeer" &&
			o.GetAPIVersion() == string(form.V3) {
			spec["keepOriginalNextHop"] = false
		}
	}
	w.put(place(form.V3, model.KindBGPPeer), `{"apiVersion":"projectcalico.org/v3","kind":"BGPPeer",
		"metadata":{"name":"tor"},"spec":{"asNumber":65000,"keepOriginalNextHop":false,"peerIP":"10.0.0.1"}}`)
	w.add(model.KindBGPPeer, "tor-2", "", `{"asNumber":65000,"peerIP":"10.0.0.2"}`)
	w.run()
	w.want(complete, "")
	if p := w.state().Progress; p.Skipped != 1 || p.Migrated != len(older) {
		t.Errorf("progress: %+v", p)
	}
}

// A writer that misses the lock changes objects while they are copied. The copies are corrected.
func TestLateWriters(t *testing.T) {
	w := filled(t)
	w.guard()
	guard, once := w.after, false
	w.after = func() {
		guard()
		if w.objects[pathOf(form.V3, model.KindCalicoNodeStatus, "", "n1")] == nil || once {
			return
		}
		once = true
		handle := pathOf(form.V1, model.KindIPAMHandle, "", "k8s-pod-network.ab")
		o := w.objects[handle].DeepCopy()
		o.Object["spec"].(map[string]any)["block"] = map[string]any{"10.9.0.0/26": int64(2)}
		w.store(handle, o, 2)
		delete(w.objects, pathOf(form.V1, model.KindHostEndpoint, "", "n1"))
	}
	w.run()
	w.want(complete, "")
	if got := w.spec(pathOf(form.V3, model.KindIPAMHandle, "", "k8s-pod-network.ab")); !strings.Contains(got, `/26":2}`) {
		t.Errorf("the copy of a handle is older: %s", got)
	}
	if got := w.spec(pathOf(form.V3, model.KindHostEndpoint, "", "n1")); !strings.HasPrefix(got, "no ") {
		t.Errorf("the copy of a deleted object is left: %s", got)
	}
}

// Owners that are objects of Calico get their new UIDs, when they have them.
func TestOwners(t *testing.T) {
	w := filled(t)
	pool := w.get(pathOf(form.V1, model.KindIPPool, "", "pods"))
	own := func(kind, name, uid string) string {
		return fmt.Sprintf(`{"apiVersion":"crd.projectcalico.org/v1","kind":%q,"name":%q,"uid":%q}`, kind, name, uid)
	}
	w.add(model.KindTier, "owned", fmt.Sprintf(`{"ownerReferences":[%s,%s,
		{"apiVersion":"apps/v1","kind":"Deployment","name":"d","uid":"12"}]}`,
		// The annotation has the UIDs of custom resources.
		own("IPPool", "pods", string(pool.GetUID())), own("IPPool", "gone", "0f3ac7de-9b21-4c55-8f10-2b6d1a9e7c04")),
		`{"order":7}`)
	w.after = func() {
		for _, o := range w.objects {
			for _, r := range o.GetOwnerReferences() {
				newer := w.objects[pathOf(form.V3, model.KindIPPool, "", "pods")]
				if r.Kind == "IPPool" && (newer == nil || r.UID != newer.GetUID()) {
					t.Errorf("Kubernetes collects %s: %+v", o.GetName(), r)
				}
			}
		}
	}
	w.run()
	w.want(complete, "")
	refs := w.get(pathOf(form.V3, model.KindTier, "", "owned")).GetOwnerReferences()
	if len(refs) != 2 || refs[0].Kind != "Deployment" || refs[1].Name != "pods" ||
		refs[1].APIVersion != string(form.V3) {
		t.Errorf("owners: %+v", refs)
	}
}

// A policy that is stored under its old name, too, is copied once. Two different ones of the same name are a conflict.
func TestOldNames(t *testing.T) {
	w := filled(t)
	w.add(model.KindGlobalNetworkPolicy, "deny", `{"name":"deny"}`,
		`{"selector":"all()","tier":"default","types":["Ingress"]}`)
	w.run()
	w.want(complete, "")
	w.checkCopied()

	w = filled(t)
	w.add(model.KindGlobalNetworkPolicy, "deny", `{"name":"deny"}`,
		`{"selector":"app == 'a'","tier":"default","types":["Ingress"]}`)
	w.run()
	w.want(waiting, "1 objects differ")
	if s := w.state(); !strings.Contains(s.Conditions[0].Message, `stored as "default.deny" and "deny"`) {
		t.Errorf("conditions: %+v", s.Conditions)
	}
}

// What would stop the migration in the middle stops it before the lock, with the reason.
func TestNotReady(t *testing.T) {
	for text, change := range map[string]func(*world) (putRight func()){
		"The controllers of Manx may not: create ippools.projectcalico.org": func(w *world) func() {
			w.denied = func(r Right) bool {
				return r.Verb == "create" && r.Resource == "ippools" && r.Group == newerGroup
			}
			return func() { w.denied = nil }
		},
		"Install the definitions of projectcalico.org: ipamblocks are missing": func(w *world) func() {
			path := crdPath + "/ipamblocks.projectcalico.org"
			o := w.get(path)
			w.remove(path)
			return func() {
				text, _ := o.MarshalJSON()
				w.put(crdPath, string(text))
			}
		},
		"crd.projectcalico.org/v1 is locked already": func(w *world) func() {
			text := `{"apiVersion":"crd.projectcalico.org/v1","kind":"ClusterInformation",
				"metadata":{"name":"default"},"spec":{"datastoreReady":%v}}`
			path := "/apis/" + string(form.V1) + "/" + information
			w.put(path, fmt.Sprintf(text, false))
			return func() { w.put(path, fmt.Sprintf(text, true)) }
		},
		"put right first: Tier/default: Tier \"default\" is invalid": func(w *world) func() {
			w.add(model.KindTier, "default", "", `{"order":7}`)
			w.refuses = func(o *Object) string {
				if o.GetAPIVersion() == string(form.V3) && o.GetName() == "default" && o.GetKind() == "Tier" {
					return "order must be 1000000"
				}
				return ""
			}
			return func() { w.remove(pathOf(form.V1, model.KindTier, "", "default")) }
		},
		"put right first: IPAMBlock/strange cannot be read": func(w *world) func() {
			w.add(model.KindIPAMBlock, "strange", "", `{"cidr":"10.9.1.0/26"}`)
			return func() { w.remove(pathOf(form.V1, model.KindIPAMBlock, "", "strange")) }
		},
	} {
		t.Run(text, func(t *testing.T) {
			w := filled(t)
			w.guard()
			putRight := change(w)
			w.run()
			w.want(pending, text)
			if o := w.get("/apis/" + string(form.V1) + infoPath); o.GetAnnotations()[lockedBy] != "" {
				t.Error("it locks the datastore")
			}
			putRight()
			w.run()
			w.want(complete, "")
			w.checkCopied()
		})
	}
}

// Without the right to write the status nothing happens, and the report says why.
func TestNoRights(t *testing.T) {
	w := filled(t)
	before := w.last
	w.denied = func(Right) bool { return true }
	w.run()
	if !strings.Contains(w.report, "may not update datastoremigrations/status.migration.projectcalico.org. The value "+
		"datastoreMigration=true") || w.last != before {
		t.Errorf("%q, %d writes", w.report, w.last-before)
	}
}

// A migration is left to calico-kube-controllers, also in the middle and after its deletion. One in a phase that this
// version does not know is left, too.
func TestLeftToOthers(t *testing.T) {
	w := filled(t)
	w.live(&process{world: w, left: 9})
	w.withdraw()
	w.others = "calico-kube-controllers run (pod x)"
	before := w.last
	w.run()
	if w.last != before || !strings.Contains(w.report, "is left to others: calico-kube-controllers run (pod x)") {
		t.Errorf("%q, %d writes", w.report, w.last-before)
	}
	w.others = ""
	w.run()
	w.checkUntouched()

	w = filled(t)
	w.put(migrationsPath, `{"apiVersion":"migration.projectcalico.org/v1beta1","kind":"DatastoreMigration",
		"metadata":{"name":"v1-to-v3"},"spec":{"type":"APIServerToCRDs"},"status":{"phase":"Paused"}}`)
	before = w.last
	w.run()
	if w.last != before || !strings.Contains(w.report, `"Paused", which this version does not know`) {
		t.Errorf("%q, %d writes", w.report, w.last-before)
	}
}

// The controllers go on with a migration of calico-kube-controllers, and take one back. Objects of others in the newer
// group stay.
func TestTakenOver(t *testing.T) {
	begun := func(phase, more string) *world {
		w := filled(t)
		w.put("/apis/"+string(form.V1)+"/"+information, `{"apiVersion":"crd.projectcalico.org/v1",
			"kind":"ClusterInformation","metadata":{"name":"default"},"spec":{"datastoreReady":false}}`)
		w.put(place(form.V3, model.KindBGPPeer), `{"apiVersion":"projectcalico.org/v3","kind":"BGPPeer",
			"metadata":{"name":"tor"},"spec":{"asNumber":65000,"peerIP":"10.0.0.1"}}`)
		w.put(migrationsPath, fmt.Sprintf(`{"apiVersion":"migration.projectcalico.org/v1beta1",
			"kind":"DatastoreMigration","metadata":{"name":"v1-to-v3","finalizers":["%s"]},
			"spec":{"type":"APIServerToCRDs"},"status":{"phase":%q,"datastoreLockedAt":"2026-01-02T03:04:00Z"%s}}`,
			finalizer, phase, more))
		return w
	}
	for phase, more := range map[string]string{pending: "", migrating: `,"startedAt":"2026-01-02T03:04:00Z"`} {
		w := begun(phase, more)
		w.run()
		w.want(complete, "")
		w.checkCopied()

		w = begun(phase, more)
		if phase == migrating {
			w.live(&process{world: w, left: 20})
		}
		w.withdraw()
		w.run()
		if w.locked(form.V1) {
			t.Errorf("%s: the older group stays locked", phase)
		}
		if got := w.spec(pathOf(form.V3, model.KindBGPPeer, "", "tor")); strings.HasPrefix(got, "no ") {
			t.Errorf("%s: an object of somebody else was deleted", phase)
		}
	}
}

// A migration of another type, or of nothing, fails, and its deletion ends it.
func TestFailed(t *testing.T) {
	w := filled(t)
	w.put(migrationsPath, `{"apiVersion":"migration.projectcalico.org/v1beta1","kind":"DatastoreMigration",
		"metadata":{"name":"v1-to-v3"},"spec":{"type":"Backwards"}}`)
	w.run()
	w.want(failed, `spec.type is "Backwards": want APIServerToCRDs`)
	if s := w.state(); len(s.Conditions) != 1 || s.Conditions[0].Type != "Failed" {
		t.Errorf("conditions: %+v", s.Conditions)
	}
	w.withdraw()
	w.run()
	w.checkUntouched()

	w = newWorld(t)
	for path := range w.objects {
		if strings.HasSuffix(path, olderSuffix) {
			w.remove(path)
		}
	}
	w.ask()
	w.run()
	w.want(failed, "there is nothing to copy")
}

// The APIService of a server that has the newer group goes while the migration lasts, and comes back when it is taken
// back.
func TestAggregated(t *testing.T) {
	w := filled(t)
	w.put(servicePath, `{"apiVersion":"apiregistration.k8s.io/v1","kind":"APIService","metadata":{"name":
		"v3.projectcalico.org","labels":{"app":"calico"}},"spec":{"group":"projectcalico.org","service":{"name":"api"}}}`)
	w.put(place(form.V3, model.KindIPPool), `{"apiVersion":"projectcalico.org/v3","kind":"IPPool",
		"metadata":{"name":"pods"},"spec":{"cidr":"10.8.0.0/16"}}`)
	w.run()
	w.want(waiting, "The datastore is locked")
	if o := w.get(servicePath + "/" + service); o.GetLabels()[byCRDs] == "" {
		t.Errorf("another server has the group: %v", o.Object)
	}
	w.withdraw()
	w.run()
	if o := w.get(servicePath + "/" + service); o.GetLabels()["app"] != "calico" || o.GetLabels()[byCRDs] != "" ||
		w.spec(servicePath+"/"+service) != `{"group":"projectcalico.org","service":{"name":"api"}}` {
		t.Errorf("the server does not have the group again: %v", o.Object)
	}
	if w.locked(form.V1) {
		t.Error("the older group is locked")
	}
	if got := w.spec(pathOf(form.V3, model.KindIPPool, "", "pods")); got != `{"cidr":"10.8.0.0/16"}` {
		t.Errorf("an object of somebody else: %s", got)
	}
}

// A lock that somebody else has set on the newer group stays, and one of this migration on an existing object ends.
func TestLockOfTheNewerGroup(t *testing.T) {
	for _, ready := range []bool{true, false} {
		w := filled(t)
		w.put("/apis/"+string(form.V3)+"/"+information, fmt.Sprintf(`{"apiVersion":"projectcalico.org/v3",
			"kind":"ClusterInformation","metadata":{"name":"default"},"spec":{"datastoreReady":%v}}`, ready))
		w.run()
		w.want(complete, "")
		if got := !w.locked(form.V3); got != ready {
			t.Errorf("the newer group is open: %v, want %v", got, ready)
		}
	}
}
