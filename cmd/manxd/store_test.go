package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/manxnet/manx/daemon/envflag"
	"github.com/manxnet/manx/datastore/connect"
	"github.com/manxnet/manx/datastore/etcd/etcdtest"
)

// manxd reads the password from the file of ETCD_PASSWORD_FILE, and warns once that http sends it unencrypted. It
// writes the settings of the datastore for the other programs of the host, without the password.
func TestPasswordFile(t *testing.T) {
	server := etcdtest.Start(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "password")
	if err := os.WriteFile(file, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	env := map[string]string{"ETCD_ENDPOINTS": server.Endpoint, "ETCD_USERNAME": "u", "ETCD_PASSWORD_FILE": file,
		"MANX_RUN_DIR": dir}
	var o options
	fs := pflag.NewFlagSet("manxd", pflag.ContinueOnError)
	o.flags(fs)
	if _, err := envflag.FromEnvironment(fs, func(name string) string { return env[name] }); err != nil {
		t.Fatal(err)
	}
	if err := o.check(); err != nil {
		t.Fatal(err)
	}
	core, log := observer.New(zapcore.WarnLevel)
	_, stop, err := openStore(t.Context(), o, func(error) {}, zap.New(core))
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	for end := time.Now().Add(time.Minute); log.Len() == 0 &&
		time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
	}
	if all := log.All(); len(all) != 1 || !strings.Contains(all[0].Message,
		"password of etcd user u goes over "+server.Endpoint+" unencrypted") {
		t.Errorf("the log is %v", all)
	}
	local, err := connect.ReadLocal(dir, connect.Settings{})
	if err != nil || local.Etcd.PasswordFile != file || local.Etcd.Username != "u" ||
		local.Etcd.Endpoints[0] != server.Endpoint {
		t.Errorf("the settings for other programs are %+v, %v", local, err)
	}
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	o.datastore.wait = true // a wait does not fill the file
	if _, _, err := openStore(context.Background(), o, func(error) {}, zap.NewNop()); err == nil ||
		!strings.Contains(err.Error(), file+" is empty") {
		t.Errorf("with an empty file: %v", err)
	}
}

// Without a setting the datastore is that of etcd's endpoints, in a pod the Kubernetes API, else an embedded one.
func TestUsualDatastore(t *testing.T) {
	token := filepath.Join(t.TempDir(), "token")
	must(t, os.WriteFile(token, nil, 0o600))
	for _, c := range []struct{ endpoints, host, token, want string }{
		{"", "", token, connect.Embedded},
		{"", "10.96.0.1", token + "s", connect.Embedded},
		{"", "10.96.0.1", token, connect.Kubernetes},
		{"http://127.0.0.1:2379", "10.96.0.1", token, connect.Etcd},
	} {
		if got := usualDatastore(c.endpoints, func(string) string { return c.host }, c.token); got != c.want {
			t.Errorf("%+v: %s", c, got)
		}
	}
}
