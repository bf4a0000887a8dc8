package datastore_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.uber.org/zap"

	"github.com/manxnet/manx/bgp"
	"github.com/manxnet/manx/dataplane/policy"
	"github.com/manxnet/manx/dataplane/policy/explain"
	"github.com/manxnet/manx/dataplane/ruleset"
	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/conversion"
	"github.com/manxnet/manx/datastore/document"
	"github.com/manxnet/manx/datastore/etcd"
	"github.com/manxnet/manx/datastore/etcd/etcdtest"
	"github.com/manxnet/manx/datastore/kubernetes"
	"github.com/manxnet/manx/datastore/kubernetes/form"
	"github.com/manxnet/manx/datastore/manifest"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/integration/jsonlines"
	"github.com/manxnet/manx/integration/kubernetes/apiserver"
	"github.com/manxnet/manx/plan"
)

// written are the objects that Calico's programs and an API server wrote, and calicoctl's output of them.
const written = "../../../datastore/kubernetes/form/testdata/"

// more has further objects, so that every kind of policy, and services, decide about a flow.
var more = []struct{ path, text string }{
	{"/api/v1/namespaces", `{"kind":"Namespace","apiVersion":"v1","metadata":{"name":"data"}}`},
	{"/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices",
		`{"kind":"EndpointSlice","apiVersion":"discovery.k8s.io/v1",
	  "metadata":{"name":"db-1","namespace":"shop","labels":{"kubernetes.io/service-name":"db"}},"addressType":"IPv4",
	  "endpoints":[{"addresses":["10.45.0.77"],"conditions":{"ready":true}}],"ports":[{"name":"","protocol":"TCP","port":80}]}`},
	{"/apis/discovery.k8s.io/v1/namespaces/data/endpointslices",
		`{"kind":"EndpointSlice","apiVersion":"discovery.k8s.io/v1",
	  "metadata":{"name":"db-2","namespace":"data","labels":{"kubernetes.io/service-name":"db"}},"addressType":"IPv4",
	  "endpoints":[{"addresses":["203.0.113.5"]}],"ports":[{"name":"p","protocol":"TCP","port":5432}]}`},
	{"/apis/networking.k8s.io/v1/namespaces/default/networkpolicies", `{"kind":"NetworkPolicy",
	  "apiVersion":"networking.k8s.io/v1","metadata":{"name":"from-shop","namespace":"default"},"spec":{"podSelector":{},
	  "policyTypes":["Ingress","Egress"],"ingress":[{"from":[{"namespaceSelector":{"matchLabels":
	  {"kubernetes.io/metadata.name":"shop"}}}],"ports":[{"protocol":"TCP","port":80}]}],
	  "egress":[{"to":[{"ipBlock":{"cidr":"10.0.0.0/8","except":["10.42.0.0/16"]}}]}]}}`},
	{"/apis/policy.networking.k8s.io/v1alpha2/clusternetworkpolicies", `{"kind":"ClusterNetworkPolicy",
	  "apiVersion":"policy.networking.k8s.io/v1alpha2","metadata":{"name":"no-dns"},"spec":{"tier":"Admin","priority":5,
	  "subject":{"namespaces":{"matchLabels":{"kubernetes.io/metadata.name":"shop"}}},
	  "egress":[{"name":"dns","action":"Deny","to":[{"networks":["0.0.0.0/0"]}],
	  "protocols":[{"udp":{"destinationPort":{"number":53}}}]}]}}`},
}

// rawObject is one object as an API server gives it.
type rawObject struct {
	Path   string         `json:"path"`
	Object map[string]any `json:"object"`
}

// cleared are members of metadata that the API server alone writes.
var cleared = []string{"managedFields", "generation", "creationTimestamp", "uid", "resourceVersion", "selfLink"}

// fill puts the objects into the API.
func fill(t *testing.T, server *apiserver.Server) {
	t.Helper()
	objects := jsonlines.Read[rawObject](t, written+"objects.jsonl")
	for _, m := range more {
		var o rawObject
		if err := json.Unmarshal([]byte(m.text), &o.Object); err != nil {
			t.Fatal(err)
		}
		o.Path = m.path + "/" + o.Object["metadata"].(map[string]any)["name"].(string)
		objects = append(objects, o)
	}
	namespaces := func(o rawObject) int {
		if o.Object["kind"] == "Namespace" {
			return 0
		}
		return 1
	}
	slices.SortStableFunc(objects, func(a, b rawObject) int { return namespaces(a) - namespaces(b) })
	for _, o := range objects {
		put(t, server, o)
	}
}

// put makes an object, or changes the one that the API server made, and its status.
func put(t *testing.T, server *apiserver.Server, o rawObject) {
	t.Helper()
	for _, name := range cleared {
		delete(o.Object["metadata"].(map[string]any), name)
	}
	raw, err := json.Marshal(o.Object)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := server.Try(t.Context(), t, http.MethodPost, path.Dir(o.Path), raw); err != nil {
		if _, missing := server.Try(t.Context(), t, http.MethodGet, o.Path, nil); missing != nil {
			t.Fatalf("%s: %v", o.Path, err)
		}
		m := o.Object["metadata"].(map[string]any)
		server.Request(t, http.MethodPatch, o.Path, map[string]any{"metadata": map[string]any{"labels": m["labels"],
			"annotations": m["annotations"]}})
	}
	if status := o.Object["status"]; status != nil && o.Object["apiVersion"] == "v1" &&
		o.Object["kind"] != "Namespace" {
		server.Request(t, http.MethodPatch, o.Path+"/status", map[string]any{"status": status})
	}
}

// dump is the output of `kubectl get -o yaml` for every object, as files.
func dump(t *testing.T, server *apiserver.Server) []manifest.Source {
	t.Helper()
	lists := []string{"/api/v1/nodes", "/api/v1/pods", "/api/v1/namespaces", "/api/v1/serviceaccounts",
		"/api/v1/services",
		"/apis/discovery.k8s.io/v1/endpointslices", "/apis/networking.k8s.io/v1/networkpolicies"}
	for _, r := range append(apiserver.CRDs(form.V1), apiserver.ClusterPolicies) {
		lists = append(lists, "/apis/"+r.Group+"/"+r.Version+"/"+r.Plural)
	}
	var files []manifest.Source
	for _, l := range lists {
		var list struct {
			APIVersion, Kind string
			Items            []map[string]any
		}
		if err := json.Unmarshal(server.Request(t, http.MethodGet, l, nil), &list); err != nil {
			t.Fatal(err)
		}
		for _, item := range list.Items { // as kubectl adds it
			item["apiVersion"], item["kind"] = list.APIVersion, strings.TrimSuffix(list.Kind, "List")
		}
		text, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "List", "items": list.Items})
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, manifest.Source{Name: path.Base(l) + ".yaml", Text: text})
	}
	return files
}

// deciding are the kinds that decide about BGP and policy.
func deciding() []model.Kind {
	kinds := slices.Concat(bgp.Kinds(), policy.Kinds)
	slices.Sort(kinds)
	return slices.Compact(kinds)
}

// readSnapshot returns the objects that a daemon has in its tables.
func readSnapshot(t *testing.T, s datastore.Backend) *datastore.Snapshot {
	t.Helper()
	tables := datastore.NewTables(zap.NewNop(), "")
	kinds := slices.DeleteFunc(deciding(), func(k model.Kind) bool { return !s.Keeps(k) })
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	go func() { _ = tables.Run(ctx, s, kinds...) }()
	snapshot, err := tables.WaitInSync(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for q := range snapshot.Quarantined() {
		t.Errorf("%s is in quarantine: %v", q.Object.Key, q.Object.Err)
	}
	return snapshot
}

// everything returns the content of a snapshot, in the form of etcd.
func everything(s *datastore.Snapshot) model.Set {
	var list []*model.Object
	for _, kind := range deciding() {
		list = slices.AppendSeq(list, s.All(kind))
	}
	converted, _ := conversion.FromDocuments(list)
	return model.NewSet(converted...)
}

// withClaims returns the objects with all claimed addresses as the pods' own, as every other form has them.
func withClaims(cluster model.Set) model.Set {
	all := maps.Clone(cluster)
	for k, o := range all {
		if w, ok := o.Value.(*model.WorkloadEndpoint); ok {
			confirmed := *o
			confirmed.Value = w.Confirmed()
			all[k] = &confirmed
		}
	}
	return all
}

// inEtcd returns an etcd with calicoctl's output of the cluster, stored like calicoctl, and the objects that it does
// not show: affinities, and the policies of Kubernetes, which controllers convert. Services stay in the Kubernetes API,
// where manxd reads them in this mode, too.
func inEtcd(t *testing.T, cluster model.Set) model.Set {
	t.Helper()
	s, err := etcd.Open(t.Context(), etcd.Config{Endpoints: []string{etcdtest.Start(t).Endpoint}}, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	files, err := filepath.Glob(written + "calicoctl-get/*.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("no files: %v", err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		objects, err := document.Parse(exported(t, text))
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		for _, o := range objects {
			// Pods that have ended have no endpoint; in etcd the CNI plugin removed it.
			if o.Key.Name != model.DefaultAllowProfile && o.Key.Name != "h1-k8s-floating--5-eth0" {
				create(t, s, o)
			}
		}
	}
	for _, o := range cluster {
		if o.Key.Kind == model.KindBlockAffinity || strings.Contains(o.Key.Name, "knp.") || isClusterPolicy(o.Key) ||
			o.Key.Kind == model.KindProfile && !exists(t, s, o.Key) {
			create(t, s, o)
		}
	}
	all := everything(readSnapshot(t, s))
	for k, o := range cluster {
		if k.Kind == model.KindService || k.Kind == model.KindEndpointSlice {
			all[k] = o
		}
	}
	return all
}

// exported is calicoctl's output, without the fields of the earlier datastore.
func exported(t *testing.T, text []byte) []byte {
	t.Helper()
	var list struct {
		APIVersion string           `json:"apiVersion"`
		Kind       string           `json:"kind"`
		Items      []map[string]any `json:"items"`
	}
	if err := json.Unmarshal(text, &list); err != nil {
		t.Fatal(err)
	}
	for _, item := range list.Items {
		for _, name := range cleared {
			delete(item["metadata"].(map[string]any), name)
		}
	}
	text, err := json.Marshal(list)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func isClusterPolicy(k model.Key) bool {
	return k.Kind == model.KindGlobalNetworkPolicy && strings.HasPrefix(k.Name, "kube-admin.")
}

func exists(t *testing.T, s datastore.Store, k model.Key) bool {
	_, err := s.Get(t.Context(), k)
	return err == nil
}

func create(t *testing.T, s datastore.Store, o *model.Object) {
	t.Helper()
	o = o.Clone()
	o.Revision = 0
	if m := o.Metadata(); m != nil {
		m.SetResourceVersion("")
		m.SetUID("")
	}
	if _, err := s.Create(t.Context(), o); err != nil {
		t.Errorf("etcd: %v", err)
	}
}

// TestBackendsAgree has one cluster in the Kubernetes API, in etcd and in files: tables, rules, explanations and BGP
// are the same. The differences are in docs/kubernetes.md.
func TestBackendsAgree(t *testing.T) {
	server := apiserver.Start(t)
	server.InstallCRDs(t, form.V1)
	server.Define(t, apiserver.ClusterPolicies)
	fill(t, server)
	s, err := kubernetes.OpenREST(t.Context(), kubernetes.Config{}, server.Config(apiserver.Admin), zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	live := readSnapshot(t, s)
	cluster := everything(live)
	state := plan.Read(dump(t, server), "kube-system")
	files, remarks := state.AsStored()
	stored := withClaims(cluster)
	t.Log(strings.Join(append(state.Remarks, remarks...), "\n"))
	// The API has the policies of Kubernetes unconverted. Only the names in the output differ.
	t.Run("policies as they are", func(t *testing.T) {
		samePolicy(t, live, cluster, regexp.MustCompile(`NetworkPolicy/(\w+)/knp\.default\.`),
			"KubernetesNetworkPolicy/$1/")
		sameBGP(t, live, cluster)
	})
	for _, other := range []struct {
		name    string
		objects model.Set
	}{{"files", files}, {"etcd", inEtcd(t, stored)}} {
		t.Run(other.name, func(t *testing.T) {
			t.Run("tables", func(t *testing.T) { sameTables(t, stored, other.objects) })
			t.Run("policy", func(t *testing.T) { samePolicy(t, stored, other.objects, nil, "") })
			t.Run("BGP", func(t *testing.T) { sameBGP(t, stored, other.objects) })
		})
	}
}

// sameTables compares each object of the kinds that decide about policy and BGP.
func sameTables(t *testing.T, want, have model.Set) {
	kinds := deciding()
	compared := 0
	for k, o := range want {
		if !slices.Contains(kinds, k.Kind) {
			continue
		}
		h := have[k]
		if w, ok := o.Value.(*model.WorkloadEndpoint); ok && len(w.Spec.IPNetworks) == 0 && h == nil {
			continue // files have no endpoint of a pod without address
		}
		if h == nil {
			t.Errorf("%s is missing", k)
			continue
		}
		compared++
		if w, h := content(t, o), content(t, h); !reflect.DeepEqual(w, h) {
			t.Errorf("%s is\n%v, want\n%v", k, h, w)
		}
	}
	for k := range have {
		if want[k] == nil && slices.Contains(kinds, k.Kind) {
			t.Errorf("%s is there alone", k)
		}
	}
	if compared < 80 {
		t.Errorf("only %d objects were compared", compared)
	}
}

// content is the content of an object, without the fields that each backend adds.
func content(t *testing.T, o *model.Object) any {
	t.Helper()
	text, err := json.Marshal(o.Value)
	if err != nil {
		t.Fatal(err)
	}
	var v map[string]any
	if err := json.Unmarshal(text, &v); err != nil {
		t.Fatal(err)
	}
	if m, ok := v["metadata"].(map[string]any); ok {
		for _, name := range cleared {
			delete(m, name)
		}
		switch o.Key.Kind {
		case model.KindWorkloadEndpoint: // only the CNI plugin reads these fields, in etcd those of the pod
			delete(m, "annotations")
		case model.KindService, model.KindEndpointSlice: // whose unused fields are not kept
			delete(v, "apiVersion")
			delete(v, "kind")
			keepPrefixed(m["labels"], model.LabelServiceName)
			keepPrefixed(m["annotations"], "projectcalico.org/")
		}
	}
	return withoutEmpty(v)
}

// keepPrefixed keeps the members whose names have this prefix.
func keepPrefixed(of any, prefix string) {
	m, _ := of.(map[string]any)
	maps.DeleteFunc(m, func(name string, _ any) bool { return !strings.HasPrefix(name, prefix) })
}

// withoutEmpty is JSON without empty members.
func withoutEmpty(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for name, m := range v {
			m = withoutEmpty(m)
			if v[name] = m; m == nil || m == "" || reflect.DeepEqual(m, map[string]any{}) ||
				reflect.DeepEqual(m, []any{}) {
				delete(v, name)
			}
		}
	case []any:
		for i := range v {
			v[i] = withoutEmpty(v[i])
		}
	}
	return v
}

// ends of connections: each pod, a node, and addresses without an owner and of a service's endpoint.
func ends(r model.Reader) (list []string) {
	for k, w := range model.All[model.WorkloadEndpoint](r, model.KindWorkloadEndpoint) {
		if len(w.Spec.IPNetworks) > 0 {
			list = append(list, "wep/"+k.Namespace+"/"+k.Name)
		}
	}
	return append(list, "node/h1", "198.51.100.7", "203.0.113.5", "169.254.169.254")
}

func rules(t *testing.T, r model.Reader, node string) string {
	t.Helper()
	var text strings.Builder
	if err := explain.Build(r, policy.Config{}, node).Table().Text(&text, ruleset.TextOptions{}); err != nil {
		t.Fatal(err)
	}
	return text.String()
}

// samePolicy compares the rules of each node, and the explanation of each flow. A name that names matches has the other
// name in want.
func samePolicy(t *testing.T, want, have model.Reader, names *regexp.Regexp, otherwise string) {
	for _, node := range []string{"h1", "h2", "rr-one.example.test"} {
		if w, h := rules(t, want, node), rules(t, have, node); w != h && names == nil {
			t.Errorf("rules of %s differ:\n%s", node, firstDifference(h, w))
		}
	}
	all := ends(want)
	allowed, explained := 0, 0
	for _, source := range all {
		for _, destination := range all {
			for _, flow := range []string{"tcp/80", "tcp/5432", "udp/53", "icmp"} {
				w, wantErr := explanation(want, source, destination, flow)
				h, haveErr := explanation(have, source, destination, flow)
				if fmt.Sprint(wantErr) != fmt.Sprint(haveErr) {
					t.Errorf("%s to %s %s: %v, want %v", source, destination, flow, haveErr, wantErr)
				}
				if wantErr != nil || haveErr != nil {
					continue
				}
				explained++
				if w.Allowed {
					allowed++
				}
				expected, got := fmt.Sprintf("%+v", *w), fmt.Sprintf("%+v", *h)
				if names != nil { // the order of policies of one order follows from their names, too
					expected, got = fmt.Sprint(w.Allowed, w.By),
						fmt.Sprint(h.Allowed, names.ReplaceAllString(h.By, otherwise))
					got = strings.ReplaceAll(got, "GlobalNetworkPolicy/kube-admin.", "ClusterNetworkPolicy/")
				}
				if expected != got {
					t.Errorf("%s to %s %s:\n%s, want\n%s", source, destination, flow, got, expected)
				}
			}
		}
	}
	if allowed < 20 || explained-allowed < 20 {
		t.Errorf("of %d flows %d are allowed: they do not show much", explained, allowed)
	}
}

func explanation(r model.Reader, source, destination, flow string) (*explain.Answer, error) {
	f, err := explain.ParseFlow(flow)
	if err != nil {
		return nil, err
	}
	return explain.Explain(explain.Computed(r, policy.Config{}),
		explain.Question{Source: source, Destination: destination,
			Flow: f})
}

func firstDifference(have, want string) string {
	h, w := strings.Split(have, "\n"), strings.Split(want, "\n")
	for i := range min(len(h), len(w)) {
		if h[i] != w[i] {
			return fmt.Sprintf("line %d: %s\nwant %s", i, h[i], w[i])
		}
	}
	return fmt.Sprintf("%d lines, want %d", len(h), len(w))
}

func sameBGP(t *testing.T, want, have model.Reader) {
	for _, node := range []string{"h1", "h2", "rr-one.example.test"} {
		w, h := bgp.Compute(bgp.Input{Reader: want, Node: node}), bgp.Compute(bgp.Input{Reader: have, Node: node})
		if len(w.Sessions) == 0 && node != "rr-one.example.test" {
			t.Errorf("%s has no sessions", node)
		}
		if !reflect.DeepEqual(w, h) {
			a, _ := json.MarshalIndent(h, "", " ")
			b, _ := json.MarshalIndent(w, "", " ")
			t.Errorf("BGP of %s: %s", node, firstDifference(string(a), string(b)))
		}
	}
}
