package install

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"
	"sigs.k8s.io/yaml"
)

const listName = "10-calico.conflist"

const writerEnv = "MANX_TEST_CONFLIST_WRITER"

// TestMain lets the test binary be a process that writes configurations until it is killed.
func TestMain(m *testing.M) {
	if dir := os.Getenv(writerEnv); dir != "" {
		for i := 0; ; i++ {
			f := Folder{dir}
			content, err := Conflist(DefaultTemplate(true, Families{V4: true}), values(i%7))
			if err == nil {
				_, _, err = f.writeConflist(listName, "", content)
			}
			if err == nil {
				text, _ := Kubeconfig("https://10.0.0.1", []byte("ca"), false, strings.Repeat(fmt.Sprint(i), 200))
				err = f.writeKubeconfig(text)
			}
			if err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
		}
	}
	os.Exit(m.Run())
}

// put writes the conflist.
func (f Folder) put(content []byte) error {
	_, _, err := f.writeConflist(listName, "", content)
	return err
}

func values(mtu int) map[string]string {
	v := map[string]string{"CNI_MTU": fmt.Sprint(1000 + mtu)}
	for _, name := range []string{"LOG_LEVEL", "LOG_FILE_PATH", "DATASTORE_TYPE", "ETCD_ENDPOINTS", "ETCD_KEY_FILE",
		"ETCD_CERT_FILE", "ETCD_CA_CERT_FILE", "CALICO_API_GROUP", "KUBERNETES_NODE_NAME", "KUBECONFIG_FILEPATH"} {
		v[name] = strings.ToLower(name)
	}
	return v
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, path, content string, mode fs.FileMode) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must(t, os.WriteFile(path, []byte(content), mode))
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	must(t, err)
	return string(text)
}

func TestTokens(t *testing.T) {
	v := values(0)
	v["KUBERNETES_NODE_NAME"] = `odd "name"`
	text, err := Conflist(DefaultTemplate(true, Families{V4: true}), v)
	must(t, err)
	var list struct{ Plugins []map[string]any }
	must(t, json.Unmarshal(text, &list))
	if p := list.Plugins[0]; p["nodename"] != `odd "name"` || p["mtu"] != 1000.0 ||
		strings.Contains(string(text), "__") {
		t.Errorf("conflist is %s", text)
	}
	text, err = RequirePolicy(text, true)
	must(t, err)
	must(t, json.Unmarshal(text, &list))
	if p := list.Plugins[0]; p["require_policy_table"] != true || p["nodename"] != `odd "name"` ||
		list.Plugins[1]["require_policy_table"] != nil {
		t.Errorf("conflist is %s", text)
	}
	text, err = RequirePolicy([]byte(`{"plugins":[{"type":"manx","require_policy_table":false}]}`), true)
	if must(t, err); !strings.Contains(string(text), `"require_policy_table": false`) {
		t.Errorf("a setting of the template is replaced: %s", text)
	}
	for _, bad := range []string{`{"name":"n","plugins":[`, `{"plugins":[{"type":"calico"}]}`,
		`{"name":"n","plugins":[{"mtu":__UNKNOWN__}]}`} {
		if _, err := Conflist(bad, v); err == nil {
			t.Errorf("%s is accepted", bad)
		}
	}
}

// A node goes from Calico to Manx and back.
func TestTheConflistThatWasThereComesBack(t *testing.T) {
	f := Folder{t.TempDir()}
	const calicos = `{"name":"k8s-pod-network","plugins":[{"type":"calico"}],"is":"Calico's"}`
	path := filepath.Join(f.Dir, listName)
	write(t, path, calicos, 0o600)
	for mtu := range 3 {
		content, err := Conflist(DefaultTemplate(true, Families{V4: true}), values(mtu))
		must(t, err)
		must(t, f.put(content))
		if !strings.Contains(read(t, path), fmt.Sprintf(`"mtu": %d`, 1000+mtu)) {
			t.Error("the conflist is not written")
		}
	}
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	did, err := f.Remove()
	if must(t, err); len(did) != 1 || !strings.HasPrefix(did[0], "restored") || read(t, path) != calicos {
		t.Errorf("%v, conflist %s", did, read(t, path))
	}
	entries, err := os.ReadDir(f.Dir)
	if must(t, err); len(entries) != 1 {
		t.Errorf("left: %v", entries)
	}
	// Without an earlier conflist nothing stays; a conflist that another program has written since stays.
	must(t, os.Remove(path))
	content, _ := Conflist(DefaultTemplate(false, Families{V4: true}), values(1))
	must(t, f.put(content))
	must(t, f.writeKubeconfig([]byte("x")))
	if did, err := f.Remove(); err != nil || len(did) != 1 || !strings.HasPrefix(did[0], "removed") {
		t.Errorf("%v, %v", did, err)
	}
	if entries, _ := os.ReadDir(f.Dir); len(entries) != 0 {
		t.Errorf("left: %v", entries)
	}
	must(t, f.put(content))
	write(t, path, calicos, 0o600)
	if did, err := f.Remove(); err != nil || len(did) != 1 || !strings.HasSuffix(did[0], "stays") ||
		read(t, path) != calicos {
		t.Errorf("%v, %v: %s", did, err, read(t, path))
	}
}

// A writer that is killed at any moment leaves whole files, and Calico's configuration can still be restored.
func TestKilledWriter(t *testing.T) {
	f := Folder{t.TempDir()}
	const calicos = `{"name":"k8s-pod-network","plugins":[{"type":"calico"}],"is":"Calico's"}`
	path := filepath.Join(f.Dir, listName)
	write(t, path, calicos, 0o600)
	for range 60 {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), writerEnv+"="+f.Dir)
		must(t, cmd.Start())
		time.Sleep(time.Duration(rand.N(30)) * time.Millisecond) // it is killed at any moment of its work
		must(t, cmd.Process.Kill())
		_ = cmd.Wait()
		var list struct {
			Plugins []map[string]any
			Is      string
		}
		text := read(t, path)
		if err := json.Unmarshal([]byte(text), &list); err != nil || list.Is == "" && len(list.Plugins) != 2 {
			t.Fatalf("half written: %q: %v", text, err)
		}
		if text, err := os.ReadFile(filepath.Join(f.Dir, KubeconfigName)); err == nil {
			var config map[string]any
			if err := yaml.Unmarshal(text, &config); err != nil || config["users"] == nil {
				t.Fatalf("half written: %q: %v", text, err)
			}
		}
	}
	if _, err := f.Remove(); err != nil {
		t.Error(err)
	}
	if text := read(t, path); text != calicos {
		t.Errorf("what came back is %s", text)
	}
}

func TestFullDisk(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Skipf("a file system to fill needs root: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	f := Folder{dir}
	first, err := Conflist(DefaultTemplate(true, Families{V4: true}), values(1))
	must(t, err)
	must(t, f.put(first))
	for i := 0; os.WriteFile(filepath.Join(dir, fmt.Sprint("fill", i)), make([]byte, 4096), 0o600) == nil; i++ {
	}
	second, err := Conflist(DefaultTemplate(true, Families{V4: true}), values(2))
	must(t, err)
	if err := f.put(second); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("error is %v", err)
	}
	if read(t, filepath.Join(dir, listName)) != string(first) {
		t.Error("the conflist that was there is not as it was")
	}
	files, _ := filepath.Glob(filepath.Join(dir, "fill*"))
	for _, file := range files {
		must(t, os.Remove(file))
	}
	must(t, f.put(second))
	if entries, _ := os.ReadDir(dir); len(entries) != 2 {
		t.Errorf("left: %v", entries)
	}
}

func TestBinaries(t *testing.T) {
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	write(t, in("image/manx-cni"), "thin", 0o755)
	write(t, in("image/manx-cni-direct"), "direct", 0o755)
	write(t, in("image/opt/portmap"), "portmap", 0o755)
	write(t, in("host/calico"), "Calico's", 0o755)
	b := Binaries{From: in("image"), Others: in("image/opt"), To: []string{in("nosuch"), in("host")},
		Skip: []string{"manx-cni"}}
	written, err := b.Install()
	must(t, err)
	for i := range written {
		written[i] = filepath.Base(written[i])
	}
	if !slices.Equal(written, []string{"manx-cni-direct", "calico", "calico-ipam", "portmap"}) {
		t.Errorf("written: %v", written)
	}
	if info, err := os.Stat(in("host/calico")); err != nil || info.Mode() != 0o755 ||
		read(t, in("host/calico")) != "thin" {
		t.Errorf("%v, %v", info, err)
	}
	if again, err := b.Install(); err != nil || len(again) > 0 {
		t.Errorf("once more: %v, %v", again, err)
	}
	write(t, in("host/portmap"), "another", 0o755)
	b.Keep = true
	if again, err := b.Install(); err != nil || len(again) > 0 {
		t.Errorf("with Keep: %v, %v", again, err)
	}
	removed, err := b.Remove()
	if must(t, err); len(removed) != 3 || read(t, in("host/portmap")) != "another" {
		t.Errorf("removed: %v", removed)
	}
	b.To = b.To[:1]
	if _, err := b.Install(); err == nil || !strings.Contains(err.Error(), "nosuch") {
		t.Errorf("without a folder: %v", err)
	}
}

// The configuration is written when the node is ready, the token is refreshed, and removed files are written anew.
func TestKeeper(t *testing.T) {
	f := Folder{t.TempDir()}
	path := filepath.Join(f.Dir, listName)
	content, err := Conflist(DefaultTemplate(true, Families{V4: true}), values(1))
	must(t, err)
	var ready atomic.Bool
	var tokens atomic.Int32
	k := &Keeper{Folder: f, Name: listName, Conflist: content, Ready: ready.Load, Log: zap.NewNop(),
		Refresh: 20 * time.Millisecond, Token: func(context.Context) (Credential, error) {
			if _, err := os.Stat(path); err == nil && tokens.Load() == 0 {
				t.Error("the conflist is there before the kubeconfig")
			}
			text, err := Kubeconfig("https://h", nil, false, fmt.Sprint("token", tokens.Add(1)))
			return Credential{Kubeconfig: text, Expires: time.Now().Add(time.Hour)}, err
		}}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- k.Run(ctx) }()
	time.Sleep(3 * readyPoll) // nothing may be written
	if entries, _ := os.ReadDir(f.Dir); len(entries) > 0 {
		t.Errorf("before the node is ready: %v", entries)
	}
	ready.Store(true)
	until := func(what string, is func() bool) {
		t.Helper()
		for end := time.Now().Add(time.Minute); !is(); time.Sleep(5 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal(what)
			}
		}
	}
	until("no conflist", func() bool { return f.present(listName) })
	until("the token is not refreshed", func() bool {
		text, _ := os.ReadFile(filepath.Join(f.Dir, KubeconfigName))
		return strings.Contains(string(text), "token3")
	})
	if info, err := os.Stat(filepath.Join(f.Dir, KubeconfigName)); err != nil || info.Mode() != 0o600 {
		t.Errorf("kubeconfig: %v, %v", info, err)
	}
	must(t, os.Remove(path))
	until("the conflist is not written anew", func() bool { return f.present(listName) })
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
