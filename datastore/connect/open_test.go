package connect_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/connect"
	"github.com/manxnet/manx/datastore/etcd"
	"github.com/manxnet/manx/datastore/etcd/etcdtest"
	"github.com/manxnet/manx/datastore/kubernetes"
	"github.com/manxnet/manx/datastore/model"
)

// opens fails unless the settings lead to a datastore that can be used.
func opens(t *testing.T, s connect.Settings) {
	t.Helper()
	store, err := connect.Open(t.Context(), s, zap.NewNop())
	if err != nil {
		t.Error(err)
		return
	}
	if _, _, err := store.List(t.Context(), model.KindNode, ""); err != nil {
		t.Error(err)
	}
	if err := store.Close(); err != nil {
		t.Error(err)
	}
}

// refuses fails unless Open's error is the given one.
func refuses(t *testing.T, s connect.Settings, is error, text string) {
	t.Helper()
	store, err := connect.Open(t.Context(), s, zap.NewNop())
	if err == nil {
		store.Close()
		t.Errorf("%+v was opened, want %q", s, text)
		return
	}
	if store != nil || is != nil && !errors.Is(err, is) || !strings.Contains(err.Error(), text) {
		t.Errorf("store %v, error %v; want %q", store, err, text)
	}
}

// Flags take priority over other settings, and other settings over the datastore of the local manxd.
func TestWhatGoesBeforeWhat(t *testing.T) {
	server := etcdtest.Start(t)
	here := server.Config()
	t.Setenv("HOME", t.TempDir())
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	nowhere := etcd.Config{Endpoints: []string{"http://127.0.0.1:1"}}
	dir, none := t.TempDir(), t.TempDir()
	if err := connect.WriteLocal(dir, connect.Settings{Etcd: here}); err != nil {
		t.Fatal(err)
	}
	opens(t, connect.Settings{Etcd: here})
	opens(t, connect.Settings{Etcd: nowhere, Over: here, RunDir: dir})
	opens(t, connect.Settings{RunDir: dir})
	opens(t, connect.Settings{Type: connect.Embedded, RunDir: dir})
	refuses(t, connect.Settings{Etcd: nowhere, RunDir: dir}, datastore.ErrUnavailable, "connection refused")
	refuses(t, connect.Settings{Over: nowhere, RunDir: dir}, datastore.ErrUnavailable, "connection refused")
	refuses(t, connect.Settings{RunDir: none}, connect.ErrNoLocal, none)
	refuses(t, connect.Settings{}, nil, "etcd endpoints are missing")
	refuses(t, connect.Settings{Etcd: here, Over: etcd.Config{Username: "u"}}, nil, "user name and password")
	refuses(t, connect.Settings{Type: "kubernetes", Etcd: here, RunDir: dir}, kubernetes.ErrNoKubernetes, "KUBECONFIG")
	refuses(t, connect.Settings{Type: "cow", RunDir: none}, nil,
		`datastore type "cow" is not known: want "etcdv3" or "kubernetes"`)
	if err := connect.WriteLocal(none, connect.Settings{Type: "kubernetes"}); err != nil {
		t.Fatal(err)
	}
	refuses(t, connect.Settings{RunDir: none}, kubernetes.ErrNoKubernetes, "KUBECONFIG") // the local manxd is a pod
}

// A password of a flag replaces a password file, and the other way round.
func TestPasswordsTakeEachOthersPlace(t *testing.T) {
	set := etcd.Config{Username: "u", Password: "p", CAFile: "/ca", Endpoints: []string{"x:1"}}
	got := set.With(etcd.Config{PasswordFile: "/f", CertFile: "/c"})
	if got.Password != "" || got.PasswordFile != "/f" || got.Username != "u" || got.CAFile != "/ca" ||
		got.CertFile != "/c" || got.Endpoints[0] != "x:1" {
		t.Errorf("%+v", got)
	}
	if got = got.With(etcd.Config{Password: "q", Endpoints: []string{"y:1"}}); got.Password != "q" ||
		got.PasswordFile != "" || got.Endpoints[0] != "y:1" {
		t.Errorf("%+v", got)
	}
}

func TestWaitsForADatastoreThatDoesNotAnswer(t *testing.T) {
	server := etcdtest.Start(t)
	server.Stop()
	waiting := make(chan error, 100)
	s := connect.Settings{Etcd: server.Config(), Wait: true, Waiting: func(err error) { waiting <- err }}
	got := make(chan error, 1)
	go func() {
		store, err := connect.Open(t.Context(), s, zap.NewNop())
		if err == nil {
			err = store.Close()
		}
		got <- err
	}()
	if err := <-waiting; !errors.Is(err, datastore.ErrUnavailable) || !strings.Contains(err.Error(), server.Endpoint) {
		t.Errorf("what is waited for: %v", err)
	}
	server.Restart(t)
	if err := <-got; err != nil {
		t.Error(err)
	}
	server.Stop()
	ctx, cancel := context.WithCancel(t.Context())
	s.Waiting = func(error) { cancel() }
	if _, err := connect.Open(ctx, s, zap.NewNop()); !errors.Is(err, context.Canceled) {
		t.Errorf("given up: %v", err)
	}
	s.Etcd.Endpoints = []string{"ftp://x:1"} // waiting helps nobody
	refuses(t, s, nil, `scheme "ftp"`)
}

func TestWarnsBeforeItOpens(t *testing.T) {
	server := etcdtest.Start(t)
	file := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(file, []byte("x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var warnings []string
	s := connect.Settings{Etcd: server.Config().With(etcd.Config{Username: "u", PasswordFile: file})}
	s.Warn = func(text string) { warnings = append(warnings, text) }
	opens(t, s)
	if len(warnings) != 1 || !strings.Contains(warnings[0], "unencrypted") {
		t.Errorf("warnings are %q", warnings)
	}
	opens(t, connect.Settings{Etcd: s.Etcd}) // no caller receives it
}

func TestFromFile(t *testing.T) {
	dir := t.TempDir()
	env := func(name string) string {
		return map[string]string{"CALICO_DATASTORE_TYPE": "kubernetes", "DATASTORE_TYPE": "etcdv3",
			"ETCD_ENDPOINTS": "e:1"}[name]
	}
	write := func(name, spec string) string {
		file := filepath.Join(dir, name)
		text := "apiVersion: projectcalico.org/v3\nkind: CalicoAPIConfig\nmetadata:\nspec:\n" + spec
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	s, err := connect.FromFile(write("good",
		"  datastoreType: etcdv3\n  etcdEndpoints: a:1,b:1\n  etcdCACertFile: /ca\n"), env)
	if err != nil || s.Type != "etcdv3" || strings.Join(s.Etcd.Endpoints, " ") != "a:1 b:1" || s.Etcd.CAFile != "/ca" {
		t.Errorf("%+v, %v", s, err)
	}
	if _, err := connect.FromFile(filepath.Join(dir, "absent"), env); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	for spec, want := range map[string]string{
		"  etcdEndpointz: a:1\n":      "etcdEndpointz",
		"  etcdDiscoverySrv: a.com\n": "are not supported",
	} {
		if _, err := connect.FromFile(write("bad", spec), env); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", spec, err)
		}
	}
	if s := connect.FromEnvironment(env); s.Type != "kubernetes" || s.Etcd.Endpoints[0] != "e:1" {
		t.Errorf("%+v", s)
	}
}

// A closed store ends its watches: store and settings must not keep a program from ending.
func TestCloseEndsTheWatches(t *testing.T) {
	store, err := connect.Open(t.Context(), connect.Settings{Etcd: etcdtest.Start(t).Config()}, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	events := store.Watch(t.Context(), model.KindNode)
	if err := store.Close(); err != nil {
		t.Error(err)
	}
	timeout := time.After(time.Minute)
	for {
		select {
		case _, ok := <-events:
			if !ok {
				return
			}
		case <-timeout:
			t.Fatal("the watch goes on")
		}
	}
}
