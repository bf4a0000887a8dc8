package connect_test

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/manxnet/manx/datastore/connect"
	"github.com/manxnet/manx/datastore/etcd"
)

// The file that manxd writes for the host's other programs suffices to use the datastore, and has no password.
func TestLocal(t *testing.T) {
	dir := t.TempDir()
	if _, err := connect.ReadLocal(dir, connect.Settings{}); !errors.Is(err, connect.ErrNoLocal) {
		t.Errorf("without a file: %v", err)
	}
	config := connect.Settings{Etcd: etcd.Config{Endpoints: []string{"https://10.0.0.1:1"}, CAFile: "/ca",
		CertFile: "/c",
		KeyFile:  "/k", Username: "u", PasswordFile: "/p"}}
	if err := connect.WriteLocal(dir, config); err != nil {
		t.Fatal(err)
	}
	if got, err := connect.ReadLocal(dir, connect.Settings{}); err != nil || !reflect.DeepEqual(got, config) {
		t.Errorf("%+v, %v: want %+v", got, err, config)
	}
	if got, err := connect.ReadLocal(dir, connect.Settings{
		Etcd: etcd.Config{Username: "me", Password: "mine"}}); err != nil ||
		got.Etcd.Username != "me" || got.Etcd.Password != "mine" || got.Etcd.PasswordFile != "" {
		t.Errorf("as another user: %+v, %v", got, err)
	}
	if err := connect.WriteLocal(dir, connect.Settings{Type: connect.Etcd, Etcd: etcd.Config{
		Endpoints: []string{"https://10.0.0.1:1"}, Username: "u", Password: "secret"}}); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		t.Fatalf("%v, %v: want one file", entries, err)
	}
	file := filepath.Join(dir, entries[0].Name())
	content, err := os.ReadFile(file)
	st, _ := os.Stat(file)
	if err != nil || strings.Contains(string(content), "secret") || strings.Contains(string(content), "type") ||
		st.Mode().Perm() != 0o600 {
		t.Errorf("%s (mode %v), %v", content, st.Mode(), err)
	}
	if err := os.WriteFile(file, content[:len(content)/2], 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := connect.ReadLocal(dir, connect.Settings{}); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("a truncated file: %v", err)
	}
}
