package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/manxnet/manx/cni"
)

// Each request to the Kubernetes API has the program's name and version, for every name under which the runtime starts
// it. The API's audit log identifies the program on a node by it.
func TestUserAgent(t *testing.T) {
	var mu sync.Mutex
	agents := map[string]string{} // with one of their requests
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		agents[r.UserAgent()] = r.Method + " " + r.URL.Path
		http.Error(w, "not here", http.StatusNotFound)
	}))
	defer api.Close()
	p := &plugin{getenv: func(string) string { return "" }, stdout: os.Stdout, stderr: os.Stderr, now: time.Now,
		open: openDatastore}
	text, err := json.Marshal(map[string]any{"cniVersion": "1.0.0", "name": network, "nodename": "node-1",
		"datastore_type": "kubernetes", "ipam": map[string]any{"type": "calico-ipam"},
		"kubernetes": map[string]any{"k8s_api_root": api.URL}, "policy": map[string]any{"type": "k8s"}})
	if err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("manx-cni-direct/%s (%s/%s)", buildVersion, runtime.GOOS, runtime.GOARCH)
	for name, request := range map[string]func() error{
		"the datastore": func() error { return p.testDatastore(strings.NewReader(string(text))) },
		"a pod of a cluster with etcd": func() error {
			conf, err := cni.ParseConfig(text)
			if err != nil {
				t.Fatal(err)
			}
			k, err := p.kubernetes(conf)
			if err != nil {
				t.Fatal(err)
			}
			_, err = k.Pod(t.Context(), "shop", "web")
			return err
		},
	} {
		clear(agents)
		if err := request(); err == nil {
			t.Errorf("%s: no error from a server that has nothing", name)
		}
		if len(agents) != 1 || agents[want] == "" {
			t.Errorf("%s: requests by %q, want all by %q", name, agents, want)
		}
	}
}
