package kubernetes_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"go.uber.org/zap"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/etcd/etcdtest"
	"github.com/manxnet/manx/datastore/kubernetes"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/datastore/storetest"
	"github.com/manxnet/manx/integration/kubernetes/apiserver"
)

const podsPath = "/api/v1/namespaces/default/pods"

// createPod creates a pod; node may be empty.
func createPod(t *testing.T, server *apiserver.Server, name, node string) {
	t.Helper()
	server.Request(t, http.MethodPost, podsPath, map[string]any{"metadata": map[string]any{"name": name},
		"spec": map[string]any{"nodeName": node, "containers": []any{map[string]any{"name": "c", "image": "i"}}}})
}

func bind(t *testing.T, server *apiserver.Server, name, node string) {
	t.Helper()
	server.Request(t, http.MethodPost, podsPath+"/"+name+"/binding", map[string]any{"kind": "Binding",
		"apiVersion": "v1", "metadata": map[string]any{"name": name}, "target": map[string]any{"kind": "Node",
			"name": node}})
}

// label changes a pod, in a field that every node keeps.
func label(t *testing.T, server *apiserver.Server, name string, value int) {
	t.Helper()
	var o map[string]any
	if err := json.Unmarshal(server.Request(t, http.MethodGet, podsPath+"/"+name, nil), &o); err != nil {
		t.Fatal(err)
	}
	o["metadata"].(map[string]any)["labels"] = map[string]string{"value": fmt.Sprint(value)}
	server.Request(t, http.MethodPut, podsPath+"/"+name, o)
}

func removePod(t *testing.T, server *apiserver.Server, name string) {
	t.Helper()
	server.Request(t, http.MethodDelete, podsPath+"/"+name, map[string]any{"gracePeriodSeconds": 0})
}

// podEvents returns the events of the pods whose names begin with a text: "own:u:POD".
func podEvents(m *storetest.Mirror, prefix string) (list []string) {
	for _, e := range m.Seen {
		ids, err := model.ParseWorkloadEndpointName(e.Key.Name)
		if err != nil || e.Type > datastore.EventDelete || !strings.HasPrefix(ids.Pod, prefix) {
			continue
		}
		list = append(list, fmt.Sprintf("%s:%s:%s", map[datastore.Part]string{datastore.Own: "own",
			datastore.Others: "others", datastore.Whole: "whole"}[e.Part], []string{"u", "d"}[e.Type], ids.Pod))
	}
	return list
}

// TestOwnPodsAreFollowedApart: a pod comes with its node to one of the feeds. What happens on other nodes does not
// delay the pods of the own one, and after a loss of history both feeds are complete again.
func TestOwnPodsAreFollowedApart(t *testing.T) {
	t.Parallel() // it waits for most of its time
	server := apiserver.StartOn(t, etcdtest.Start(t).Endpoint)
	line := apiserver.NewLine(t, server.URL)
	for _, name := range []string{"own-old", "own-gone"} {
		createPod(t, server, name, "n1")
	}
	createPod(t, server, "other-old", "n2")
	createPod(t, server, "other-gone", "n2")
	createPod(t, server, "own-late", "")
	createPod(t, server, "other-late", "")
	s := openAt(t, server, line.URL, kubernetes.Config{Node: "n1"})
	tables := datastore.NewTables(zap.NewNop(), "n1")
	go func() { _ = tables.Run(t.Context(), s, model.KindWorkloadEndpoint) }()
	m := storetest.Watch(t, s, model.KindWorkloadEndpoint)
	m.Until("sync of both", func() bool { return m.InSync == 2 })
	until := func(prefix string, want ...string) {
		t.Helper()
		m.Until(fmt.Sprint("the events ", want), func() bool { return len(podEvents(m, prefix)) >= len(want) })
		if got := podEvents(m, prefix); !slices.Equal(got, want) {
			t.Errorf("events %q, want %q", got, want)
		}
	}
	if all := podEvents(m, ""); len(all) != 4 {
		t.Errorf("at first %q", all)
	}
	bind(t, server, "own-late", "n1")
	bind(t, server, "other-late", "n2")
	until("own-late", "own:u:own-late")
	until("other-late", "others:u:other-late")

	// The first change of another pod comes immediately, and the second one with what gathers behind it.
	late := 0
	const attempts = 10
	for i := range attempts {
		label(t, server, "other-old", 2*i+1)
		label(t, server, "other-old", 2*i+2)
		label(t, server, "own-old", i+1)
		m.Until("three changes", func() bool {
			return len(podEvents(m, "other-old")) == 1+2*(i+1) && len(podEvents(m, "own-old")) == 1+i+1
		})
		events := slices.DeleteFunc(slices.Clone(m.Seen), func(e datastore.Event) bool {
			return e.Type > datastore.EventDelete
		})
		if events[len(events)-1].Part == datastore.Own {
			late++
		}
	}
	if late > attempts/2 {
		t.Errorf("%d of %d changes of an own pod came after the earlier ones of another node's", late, attempts)
	}

	lost := m.Lost
	line.Cut()
	m.Until("the loss of both", func() bool { return m.Lost >= lost+2 })
	for _, name := range []string{"own-gone", "other-gone"} {
		removePod(t, server, name)
	}
	createPod(t, server, "own-new", "n1")
	createPod(t, server, "other-new", "n2")
	server.Forget(t)
	n := m.InSync
	line.Mend()
	m.Until("sync of both", func() bool { return m.InSync == n+2 })
	until("own-gone", "own:u:own-gone", "own:d:own-gone")
	until("other-gone", "others:u:other-gone", "others:d:other-gone")
	until("own-new", "own:u:own-new")
	until("other-new", "others:u:other-new")
	list, _, err := s.List(t.Context(), model.KindWorkloadEndpoint, "")
	if err != nil || len(list) != 6 {
		t.Fatalf("%d endpoints: %v", len(list), err)
	}
	for _, o := range list {
		if m.State[o.Key] != o.Revision {
			t.Errorf("%s of revision %d is followed as %d", o.Key, o.Revision, m.State[o.Key])
		}
	}
	if len(m.State) != len(list) {
		t.Errorf("followed: %v", m.State)
	}
	seen := tables.Snapshot()
	for !seen.InSync() || seen.Len() != len(list) {
		if seen, err = tables.Wait(t.Context(), seen); err != nil {
			t.Fatal(err)
		}
	}
}
