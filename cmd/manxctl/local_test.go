package main_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/manxnet/manx/datastore/connect"
	"github.com/manxnet/manx/datastore/etcd"
	"github.com/manxnet/manx/datastore/etcd/embedded"
	"github.com/manxnet/manx/datastore/etcd/etcdtest"
)

// localManxd writes the files of a manxd that embeds the datastore into a folder, and returns the flag that names that
// manxd.
func localManxd(t *testing.T) (flag, dir string) {
	t.Helper()
	server := etcdtest.Start(t)
	dir = t.TempDir()
	config := etcd.Config{Endpoints: []string{"unix://" + filepath.Join(server.DataDir, embedded.SocketName)}}
	if err := connect.WriteLocal(dir, connect.Settings{Etcd: config}); err != nil {
		t.Fatal(err)
	}
	return "--socket=" + filepath.Join(dir, "manxd.sock"), dir
}

// Without any setting manxctl uses the datastore of the local manxd.
func TestFindsTheLocalDatastore(t *testing.T) {
	s := shell{t: t}
	flag, _ := localManxd(t)
	s.mustPipe("apiVersion: projectcalico.org/v3\nkind: IPPool\nmetadata: {name: p}\nspec: {cidr: 10.0.0.0/16}\n",
		"apply", flag, "-f", "-")
	if out := s.must("get", "ippools", flag); !strings.Contains(out, "10.0.0.0/16") {
		t.Errorf("pools are\n%s", out)
	}
	nowhere := "--socket=" + filepath.Join(t.TempDir(), "manxd.sock")
	s.run("get", "ippools", nowhere).want(t, 1, "", "no datastore is set", "datastore.json",
		"start manxd, or set --etcd-endpoints")
}

// Settings with the address of older versions yield an error with advice.
func TestOldAddressOfTheLocalDatastore(t *testing.T) {
	flag, _ := localManxd(t)
	s := shell{t, []string{"ETCD_ENDPOINTS=http://127.0.0.1:2379"}}
	r := s.run("get", "ippools", flag)
	if r.code == 0 {
		t.Skip("another etcd runs here")
	}
	r.want(t, 1, "", "connection refused", "does not serve its datastore there any more")
}

// A user other than root can read neither the file with the datastore's settings nor the datastore.
func TestLocalDatastoreIsForRootAlone(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("becoming another user wants root")
	}
	flag, dir := localManxd(t)
	for d := dir; d != os.TempDir() && d != "/"; d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(filepath.Dir(binary), 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(binary, "get", "ippools", flag)
	cmd.Dir, cmd.Env = "/", []string{}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 || !strings.Contains(string(out),
		"permission denied: the datastore of the local manxd is for root alone") {
		t.Errorf("as nobody: %v, %s", err, out)
	}
}

func TestPasswordFile(t *testing.T) {
	s, server := newShell(t)
	dir := t.TempDir()
	good, empty := write(t, dir, "good", "secret\n"), write(t, dir, "empty", "\n")
	if err := os.Chmod(good, 0o644); err != nil {
		t.Fatal(err)
	}
	s.env = append(s.env, "ETCD_USERNAME=u")
	r := s.run("get", "ippools", "-o", "name", "--etcd-password-file="+good)
	r.want(t, 0, "", "Warning: the password of etcd user u goes over "+server.Endpoint+" unencrypted",
		"Warning: every user of this host can read etcd password file "+good)
	if n := strings.Count(r.err, "Warning"); n != 2 {
		t.Errorf("%d warnings:\n%s", n, r.err)
	}
	s.run("get", "ippools", "--etcd-password-file="+empty).want(t, 1, "", empty+" is empty")
	s.run("get", "ippools", "--etcd-password-file="+good, "--etcd-password=x").want(t, 1, "", "one of them")
	file := write(t, dir, "calicoctl.cfg", "apiVersion: projectcalico.org/v3\nkind: "+
		"CalicoAPIConfig\nmetadata:\nspec:\n  etcdEndpoints: "+server.Endpoint+
		"\n  etcdUsername: u\n  etcdPasswordFile: "+empty+"\n")
	s.run("get", "ippools", "-c", file).want(t, 1, "", empty+" is empty")
	help := s.must("get", "--help")
	if !strings.Contains(help, "sees it in the output of ps: use --etcd-password-file") {
		t.Errorf("help does not warn of the flag:\n%s", help)
	}
}
