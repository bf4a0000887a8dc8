package kubernetes_test

import (
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/kubernetes"
	"github.com/manxnet/manx/datastore/kubernetes/form"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/datastore/storetest"
	"github.com/manxnet/manx/integration/kubernetes/apiserver"
)

func peer(name, ip string) *model.Object {
	return model.NewObject(model.ResourceKey(model.KindBGPPeer, name),
		&model.BGPPeer{Spec: model.BGPPeerSpec{PeerIP: ip, ASNumber: 64512}})
}

const peers = "/apis/crd.projectcalico.org/v1/bgppeers"

// The error of one kind is reported for that kind, and the others continue.
func TestTrouble(t *testing.T) {
	t.Parallel()
	server := apiserver.Start(t)
	s := openAt(t, server, server.URL, kubernetes.Config{})

	t.Run("definitions are missing", func(t *testing.T) {
		if _, err := s.Create(t.Context(), peer("a", "10.0.0.1")); !errors.Is(err, datastore.ErrUnavailable) ||
			!strings.Contains(err.Error(), "bgppeers.projectcalico.org") {
			t.Errorf("create: %v", err)
		}
		if _, err := s.Get(t.Context(), peer("a", "").Key); !errors.Is(err, datastore.ErrNotFound) {
			t.Errorf("get: %v", err)
		}
		if all, _, err := s.List(t.Context(), model.KindBGPPeer, ""); err != nil || len(all) > 0 {
			t.Errorf("list: %v, %v", all, err)
		}
		if n := s.Notices(); len(n) != 1 || !strings.Contains(n[0], "bgppeers") {
			t.Errorf("notices: %q", n)
		}
		// No installation brings the definition of ClusterNetworkPolicy: a cluster without it lacks nothing.
		if all, _, err := s.List(t.Context(), model.KindClusterNetworkPolicy, ""); err != nil || len(all) > 0 {
			t.Errorf("list: %v, %v", all, err)
		}
		policies := storetest.Watch(t, s, model.KindClusterNetworkPolicy)
		policies.UntilInSync()
		if n := s.Notices(); len(n) != 1 || strings.Contains(n[0], "clusternetworkpolicies") {
			t.Errorf("notices: %q", n)
		}
		m := storetest.Watch(t, s, model.KindBGPPeer)
		m.UntilInSync()
		server.Define(t, apiserver.ClusterPolicies)
		server.Request(t, http.MethodPost, "/apis/policy.networking.k8s.io/v1alpha2/clusternetworkpolicies",
			map[string]any{"kind": "ClusterNetworkPolicy", "apiVersion": "policy.networking.k8s.io/v1alpha2",
				"metadata": map[string]any{"name": "late"}, "spec": map[string]any{"tier": "Admin", "priority": 1,
					"subject": map[string]any{"namespaces": map[string]any{}}, "ingress": []any{}}})
		server.InstallCRDs(t, form.V1)
		if _, _, err := s.List(t.Context(), model.KindBGPPeer, ""); err != nil { // finds the group
			t.Error(err)
		}
		a := storetest.Create(t, s, peer("a", "10.0.0.1"))
		m.UntilState(map[model.Key]int64{a.Key: a.Revision})
		policies.Until("the first policy", func() bool {
			_, ok := policies.State[model.ResourceKey(model.KindClusterNetworkPolicy, "late")]
			return ok
		})
		if n := s.Notices(); len(n) > 0 {
			t.Errorf("notices: %q", n)
		}
	})
	t.Run("an object that passed their validation", func(t *testing.T) {
		m := storetest.Watch(t, s, model.KindBGPPeer)
		server.Request(t, http.MethodPost, peers, map[string]any{"kind": "BGPPeer", "apiVersion": string(form.V1),
			"metadata": map[string]any{"name": "odd"}, "spec": map[string]any{"peerIP": "cow", "asNumber": 1}})
		m.Until("the odd one", func() bool {
			return slices.ContainsFunc(m.Seen, func(e datastore.Event) bool {
				return e.Key.Name == "odd" &&
					e.Object.Err != nil
			})
		})
		server.Request(t, http.MethodDelete, peers+"/odd", nil)
		m.Until("its end", func() bool { _, ok := m.State[model.ResourceKey(model.KindBGPPeer, "odd")]; return !ok })
	})
	t.Run("a deletion that was begun", func(t *testing.T) {
		o := storetest.Create(t, s, model.NewObject(model.HandleKey("Net.A"),
			&model.Handle{Block: map[string]int{"10.0.0.0/26": 1}}))
		m := storetest.Watch(t, s, model.KindIPAMHandle)
		m.UntilInSync()
		marked, err := s.Update(t.Context(), form.Mark(o))
		if err != nil {
			t.Fatal(err)
		}
		m.UntilState(map[model.Key]int64{})
		if all, _, err := s.List(t.Context(), model.KindIPAMHandle, ""); err != nil || len(all) > 0 {
			t.Errorf("list: %v, %v", all, err)
		}
		again := storetest.Create(t, s, model.NewObject(o.Key, &model.Handle{Block: map[string]int{"10.0.0.0/26": 2}}))
		m.UntilState(map[model.Key]int64{again.Key: again.Revision})
		if again.Revision <= marked.Revision {
			t.Errorf("revision %d after %d", again.Revision, marked.Revision)
		}
	})
	t.Run("rights and tokens", func(t *testing.T) { rights(t, server) })
}

// rights removes the right to one kind, and the token.
func rights(t *testing.T, server *apiserver.Server) {
	const roles = "/apis/rbac.authorization.k8s.io/v1/"
	role := func(resources ...string) map[string]any {
		return map[string]any{"kind": "ClusterRole", "metadata": map[string]any{"name": "r"},
			"rules": []any{map[string]any{
				"apiGroups": []string{"*"}, "resources": resources, "verbs": []string{"get", "list", "watch"}}}}
	}
	server.Request(t, http.MethodPost, roles+"clusterroles", role("bgppeers", "tiers"))
	server.Request(t, http.MethodPost, roles+"clusterrolebindings", map[string]any{"kind": "ClusterRoleBinding",
		"metadata": map[string]any{"name": "b"}, "roleRef": map[string]any{"kind": "ClusterRole", "name": "r",
			"apiGroup": "rbac.authorization.k8s.io"},
		"subjects": []any{map[string]any{"kind": "User", "name": "reader", "apiGroup": "rbac.authorization.k8s.io"}}})
	server.AddUsers(t, "reader")
	token := filepath.Join(t.TempDir(), "token")
	config := server.Config("reader")
	config.BearerToken, config.BearerTokenFile = "", token
	if err := os.WriteFile(token, []byte(apiserver.Token("reader")), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := kubernetes.OpenREST(t.Context(), kubernetes.Config{}, config, logger(t))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := s.Create(t.Context(), peer("b", "10.0.0.1")); !errors.Is(err, datastore.ErrUnauthorized) ||
		!strings.Contains(err.Error(), `cannot create resource "bgppeers"`) {
		t.Errorf("create: %v", err)
	}
	m := storetest.Watch(t, s, model.KindBGPPeer, model.KindTier)
	m.Until("sync of both", func() bool { return m.InSync == 2 })
	server.Request(t, http.MethodPut, roles+"clusterroles/r", role("bgppeers"))
	server.Restart(t) // which ends the watches
	sync := m.InSync
	m.Until("the loss of one and the sync of the other", func() bool {
		last := m.Seen[len(m.Seen)-1]
		return m.InSync > sync && last.Type == datastore.EventLost &&
			slices.Equal(last.Kinds, []model.Kind{model.KindTier}) &&
			errors.Is(last.Err, datastore.ErrUnauthorized) && strings.Contains(last.Err.Error(), "tiers")
	})
	if _, _, err := s.List(t.Context(), model.KindBGPPeer, ""); err != nil {
		t.Error(err)
	}
	if _, err := kubernetes.OpenREST(t.Context(), kubernetes.Config{}, server.Config("nobody"), logger(t)); !errors.Is(
		err,
		datastore.ErrUnauthorized) {
		t.Errorf("an unknown token: %v", err)
	}
}
