package kubernetes_test

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	"go.uber.org/zap"
	"k8s.io/client-go/rest"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/kubernetes"
	"github.com/manxnet/manx/datastore/kubernetes/form"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/datastore/storetest"
	"github.com/manxnet/manx/integration/kubernetes/apiserver"
	"github.com/manxnet/manx/ipam"
)

// Variables with CALICO_ take priority, and single fields take priority over a kubeconfig.
func TestConfigFromEnv(t *testing.T) {
	env := map[string]string{"KUBECONFIG": "/k", "CALICO_KUBECONFIG": "/c", "K8S_API_ENDPOINT": "https://h:1",
		"K8S_CA_FILE":    "/ca",
		"K8S_CLIENT_QPS": "2.5", "USE_POD_CIDR": "true", "CALICO_API_GROUP": string(form.V3),
		"FELIX_INTERFACEPREFIX": "eni,cali"}
	got := kubernetes.ConfigFromEnv(func(name string) string { return env[name] })
	want := kubernetes.Config{Kubeconfig: "/c", Endpoint: "https://h:1", CAFile: "/ca", QPS: 2.5, UsePodCIDR: true,
		Group: string(form.V3), InterfacePrefix: "eni"}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	if _, err := (kubernetes.Config{}).REST(); !errors.Is(err, kubernetes.ErrNoKubernetes) {
		t.Errorf("without any setting: %v", err)
	}
	file := filepath.Join(t.TempDir(), "kubeconfig")
	for content, wrong := range map[string]string{
		"":            "no configuration has been provided",
		"cow":         "cannot unmarshal",
		"clusters: x": "json",
	} {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if r, err := (kubernetes.Config{Kubeconfig: file}).REST(); err == nil || !strings.Contains(err.Error(), file) {
			t.Errorf("kubeconfig %q: %v, %v; want %s", content, r, err, wrong)
		}
	}
	r, err := kubernetes.Config{Endpoint: "https://h:1", QPS: 3}.REST()
	if err != nil || r.Host != "https://h:1" || r.QPS != 3 || r.Burst != 100 {
		t.Errorf("%+v, %v", r, err)
	}
	if r, err = (kubernetes.Config{Endpoint: "https://h:1"}).REST(); err != nil || r.QPS != -1 {
		t.Errorf("%+v, %v", r, err)
	}
}

// Requests are counted by verb and status, and a watch is none of the other reads.
func TestRequestsAreCounted(t *testing.T) {
	t.Parallel()
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPut {
			w.WriteHeader(http.StatusConflict)
		}
	}))
	defer api.Close()
	var mu sync.Mutex
	got := map[string]int{}
	config, err := kubernetes.Config{Endpoint: api.URL, Requested: func(verb, code string) {
		mu.Lock()
		defer mu.Unlock()
		got[verb+" "+code]++
	}}.REST()
	if err != nil {
		t.Fatal(err)
	}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	request := func(method, path string) {
		req, err := http.NewRequestWithContext(t.Context(), method, api.URL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if resp, err := client.Do(req); err == nil {
			_ = resp.Body.Close()
		}
	}
	request(http.MethodGet, "/api/v1/pods?watch=true&resourceVersion=1")
	request(http.MethodGet, "/api/v1/pods")
	request(http.MethodPut, "/api/v1/pods/a")
	api.Close()
	request(http.MethodGet, "/api/v1/pods")
	if want := map[string]int{"watch 200": 1, "get 200": 1, "put 409": 1, "get error": 1}; !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// A server with a certificate of a new authority is trusted as soon as the authority's file has it.
func TestRotatedAuthority(t *testing.T) {
	t.Parallel()
	server := apiserver.Start(t)
	file := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(file, server.CA(), 0o600); err != nil {
		t.Fatal(err)
	}
	config := server.Config(apiserver.Admin)
	config.CAData, config.CAFile = nil, file
	s, err := kubernetes.OpenREST(t.Context(), kubernetes.Config{}, config, logger(t))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	m := storetest.Watch(t, s, model.KindNamespace)
	m.UntilInSync()
	server.RotateCA(t)
	if _, _, err := s.List(t.Context(), model.KindNamespace, ""); !errors.Is(err, datastore.ErrUnavailable) ||
		!strings.Contains(err.Error(), "unknown authority") {
		t.Errorf("an authority that is not known: %v", err)
	}
	if err := os.WriteFile(file, server.CA(), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.List(t.Context(), model.KindNamespace, ""); err != nil {
		t.Errorf("when it is known: %v", err)
	}
	m.UntilInSync()
}

// Allocators that work at the same time give no address twice, and leave nothing half-done.
func TestAllocatorsAtOnce(t *testing.T) {
	t.Parallel()
	server := apiserver.Start(t)
	server.InstallCRDs(t, form.V1)
	const nodes, each = 2, 20
	done := make(chan []netip.Prefix, nodes)
	server.Request(t, http.MethodPost, "/api/v1/nodes",
		map[string]any{"kind": "Node", "metadata": map[string]any{"name": "n1"}})
	first := openAt(t, server, server.URL, kubernetes.Config{})
	storetest.Create(t, first, model.NewObject(model.ResourceKey(model.KindIPPool, "p"),
		&model.IPPool{Spec: model.IPPoolSpec{CIDR: "10.0.0.0/24", BlockSize: 28}}))
	for i := range nodes {
		allocator := ipam.New(openAt(t, server, server.URL, kubernetes.Config{}), zap.NewNop(), time.Now)
		go func() {
			var all []netip.Prefix
			for k := range each {
				got, err := allocator.AutoAssign(t.Context(),
					ipam.Request{Host: "n1", Num4: 1, Handle: fmt.Sprintf("h-%d-%d", i, k),
						Use: v3.IPPoolAllowedUseWorkload})
				if err != nil {
					t.Error(err)
					break
				}
				all = append(all, got.V4.Addresses...)
			}
			done <- all
		}()
	}
	seen := map[netip.Addr]bool{}
	for range nodes {
		for _, p := range <-done {
			if seen[p.Addr()] {
				t.Errorf("%s was given twice", p)
			}
			seen[p.Addr()] = true
		}
	}
	if len(seen) != nodes*each {
		t.Errorf("%d addresses, want %d", len(seen), nodes*each)
	}
	blocks, _, err := first.List(t.Context(), model.KindIPAMBlock, "")
	if err != nil {
		t.Fatal(err)
	}
	used := 0
	for _, o := range blocks {
		for _, a := range o.Value.(*model.Block).Allocations {
			if a != nil {
				used++
			}
		}
	}
	if used != nodes*each {
		t.Errorf("the blocks have %d addresses, want %d", used, nodes*each)
	}
}

// A cluster with definitions of both groups goes on with the one that has its objects, as a program finds it at its
// start; without any, Calico's programs use the older one.
func TestGroupInForce(t *testing.T) {
	t.Parallel()
	server := apiserver.Start(t)
	server.InstallCRDs(t, form.V3)
	start := func() *kubernetes.Store { return openAt(t, server, server.URL, kubernetes.Config{}) }
	peers := func(s *kubernetes.Store) (names []string) {
		all, _, err := s.List(t.Context(), model.KindBGPPeer, "")
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range all {
			names = append(names, o.Key.Name)
		}
		return names
	}
	storetest.Create(t, start(), peer("newer", "10.0.0.1"))
	add := func(g form.Group) {
		server.Request(t, http.MethodPost, "/apis/"+string(g)+"/clusterinformations", map[string]any{
			"apiVersion": string(g), "kind": "ClusterInformation", "metadata": map[string]any{"name": "default"}})
	}
	add(form.V3)
	server.InstallCRDs(t, form.V1)
	if got := peers(start()); !slices.Equal(got, []string{"newer"}) {
		t.Errorf("beside empty definitions of %s: %q", form.V1, got)
	}
	add(form.V1)
	s := start()
	storetest.Create(t, s, peer("older", "10.0.0.2"))
	if got := peers(s); !slices.Equal(got, []string{"older"}) {
		t.Errorf("with objects of both: %q", got)
	}
	for _, g := range []form.Group{form.V1, form.V3} {
		server.Request(t, http.MethodDelete, "/apis/"+string(g)+"/clusterinformations/default", nil)
	}
	if got := peers(start()); !slices.Equal(got, []string{"older"}) {
		t.Errorf("with no ClusterInformation: %q", got)
	}
	if got := peers(openAt(t, server, server.URL, kubernetes.Config{Group: string(form.V3)})); !slices.Equal(got,
		[]string{"newer"}) {
		t.Errorf("a setting names %s: %q", form.V3, got)
	}
	followsMigration(t, server)
}

// A program goes on with the older group while its objects are copied, and is told when they have been; one that starts
// then has the newer group, whatever is left of the older one. A setting comes before that.
func followsMigration(t *testing.T, server *apiserver.Server) {
	const group, version = "migration.projectcalico.org", "v1beta1"
	path := "/apis/" + group + "/" + version + "/datastoremigrations"
	object := func(phase string) map[string]any {
		return map[string]any{"apiVersion": group + "/" + version, "kind": "DatastoreMigration",
			"metadata": map[string]any{"name": "v1-to-v3"}, "spec": map[string]any{"type": "APIServerToCRDs"},
			"status": map[string]any{"phase": phase, "message": "copying"}}
	}
	for _, g := range []form.Group{form.V1, form.V3} {
		server.Request(t, http.MethodPost, "/apis/"+string(g)+"/clusterinformations", map[string]any{
			"apiVersion": string(g), "kind": "ClusterInformation", "metadata": map[string]any{"name": "default"}})
	}
	server.Define(t, form.Resource{Group: group, Version: version, Plural: "datastoremigrations",
		Kind: "DatastoreMigration"})
	server.Request(t, http.MethodPost, path, object("Migrating"))
	moved := make(chan string, 2)
	config := kubernetes.Config{MigrationInterval: 20 * time.Millisecond,
		Moved: func(why string) { moved <- why }}
	s := openAt(t, server, server.URL, config)
	config.Group = string(form.V1)
	pinned := openAt(t, server, server.URL, config)
	awaitNotice(t, s, `is Migrating ("copying"). The datastore is locked until the end of it. This node uses `+
		"crd.projectcalico.org/v1, and changes to projectcalico.org/v3 when the phase is Converged")
	awaitNotice(t, pinned, "CALICO_API_GROUP makes this node use crd.projectcalico.org/v1: set it to")
	patch := func(phase string) {
		server.Request(t, http.MethodPatch, path+"/v1-to-v3", map[string]any{"status": map[string]any{"phase": phase}})
	}
	held := func(s *kubernetes.Store) string {
		why, err := s.Held(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return why
	}
	if why := held(s); !strings.Contains(why, "is Migrating, and ends the lock itself") {
		t.Errorf("the lock of the migration: %q", why)
	}
	patch("Converged")
	if why := held(pinned); !strings.Contains(why, "crd.projectcalico.org/v1 is outdated") {
		t.Errorf("the lock of the older group: %q", why)
	}
	if why := <-moved; !strings.Contains(why, "is Converged: the objects of crd.projectcalico.org/v1 are now in") {
		t.Errorf("moved, since %s", why)
	}
	awaitNotice(t, s, "manxd starts again now, to use projectcalico.org/v3")
	awaitNotice(t, pinned, "which is outdated and stays locked")
	config.Group = ""
	again := openAt(t, server, server.URL, config)
	if g := again.Group(); g != form.V3 {
		t.Errorf("opened again with %s", g)
	}
	if why := held(again); why != "" {
		t.Errorf("a lock of the newer group: %q", why)
	}
	awaitNotice(t, again, "This node uses projectcalico.org/v3 already")
	patch("Complete")
	for end := time.Now().Add(10 * time.Second); len(again.Notices()) > 0 && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
	}
	if list := again.Notices(); len(list) > 0 {
		t.Errorf("when all is complete: %q", list)
	}
	select {
	case why := <-moved:
		t.Errorf("moved once more, since %s", why)
	default:
	}
}

// awaitNotice waits until a notice of a store has a text.
func awaitNotice(t *testing.T, s *kubernetes.Store, text string) {
	t.Helper()
	var list []string
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if list = s.Notices(); slices.ContainsFunc(list, func(n string) bool { return strings.Contains(n, text) }) {
			return
		}
	}
	t.Fatalf("notices are %q, want %q", list, text)
}
