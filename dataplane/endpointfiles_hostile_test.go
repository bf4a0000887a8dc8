package dataplane

import (
	"cmp"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/manxnet/manx/datastore/model"
)

const nobody = 65534

// asNobody runs a shell script as a user without rights; it returns false if the host does not allow that user to do
// so.
func asNobody(t *testing.T, script string) bool {
	t.Helper()
	cmd := exec.Command("sh", "-ec", script)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Logf("as nobody: %v\n%s", err, out)
	}
	return err == nil
}

// hostile makes a folder of nobody below a folder of root, and a precious file of root.
func hostile(t *testing.T) (root, theirs, precious string) {
	t.Helper()
	root, err := os.MkdirTemp("/tmp", "manx-hostile-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(root) })
	theirs, precious = filepath.Join(root, "theirs"), filepath.Join(root, "precious")
	for _, err := range []error{
		os.Chmod(root, 0o755), os.Mkdir(theirs, 0o755), os.Chown(theirs, nobody, nobody),
		os.WriteFile(precious, []byte("precious"), 0o600),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return root, theirs, precious
}

// An unprivileged user puts links in the folder of the FelixConfiguration. The folder is refused with a reason, the
// files are in the default folder, and the workload is reported. A folder of root is used.
func TestAStatusFolderOfAnotherUserIsRefused(t *testing.T) {
	h := newHost(t)
	h.pod("cali1")
	root, theirs, precious := hostile(t)
	usual := filepath.Join(root, "usual")
	core, logs := observer.New(zapcore.WarnLevel)
	a := New(Config{Kernel: KernelOf(h.open()), NodeName: "node-1", Logger: zap.New(core),
		EndpointStatusDir: func(prefix string) string {
			return filepath.Join(cmp.Or(prefix, usual), "endpoint-status")
		}})
	start(t, a)
	if !asNobody(t, "mkdir "+theirs+"/endpoint-status; ln -s "+precious+" "+theirs+"/endpoint-status/.new; ln -s "+
		precious+" '"+theirs+"/endpoint-status/k8s default%2Fweb eth0'") {
		t.Fatal("nobody cannot make links in the folder")
	}
	felix := &model.FelixConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
	felix.Spec.EndpointStatusPathPrefix = theirs
	set := model.NewSet(nodeObject("node-1", "10.1.0.5/24", ""),
		endpointObject("node--1-k8s-web-eth0", "node-1", "cali1", "10.244.1.7/32"),
		model.NewObject(model.ResourceKey(model.KindFelixConfiguration, "default"), felix))
	a.set(set)
	a.synced(true, true)
	const file = "k8s default%2Fweb eth0"
	exists := func(dir string) func() bool {
		return func() bool { _, err := os.Stat(filepath.Join(dir, "endpoint-status", file)); return err == nil }
	}
	waitFor(t, "the file in the usual folder", exists(usual))
	if content, err := os.ReadFile(precious); err != nil || string(content) != "precious" {
		t.Fatalf("root's file is now %q, %v", content, err)
	}
	notices := a.Status().Notices
	if len(notices) != 1 || notices[0].Subject != theirs+"/endpoint-status" ||
		!strings.Contains(notices[0].Text, "belongs to user 65534") {
		t.Errorf("notices are %+v", notices)
	}
	if n := logs.FilterMessageSnippet("endpointStatusPathPrefix").Len(); n != 1 {
		t.Errorf("%d warnings, want 1: %v", n, logs.All())
	}

	if err := os.RemoveAll(theirs); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(theirs, 0o755); err != nil {
		t.Fatal(err)
	}
	a.set(set)
	waitFor(t, "the file in the folder that is root's now", exists(theirs))
	waitFor(t, "the file in the usual folder to go", func() bool { return !exists(usual)() })
	if notices := a.Status().Notices; len(notices) > 0 {
		t.Errorf("notices are %+v", notices)
	}
}

// In a configured folder that another user may write to, that user's files are neither written nor removed. A folder in
// the place of a file is reported.
func TestWhatOthersPlantInTheStatusFolderIsNotWrittenTo(t *testing.T) {
	for name, x := range map[string]struct{ plant, reason string }{
		"link":      {"ln -s PRECIOUS FILE", ""},
		"old name":  {"ln -s PRECIOUS DIR/.new", ""},
		"pipe":      {"mkfifo FILE", ""},
		"their own": {"echo forged > FILE", ""},
		"folder":    {"mkdir FILE", "is a folder, of user 65534: remove it"},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			h.pod("cali1")
			_, theirs, precious := hostile(t)
			file := filepath.Join(theirs, "k8s default%2Fweb eth0")
			script := strings.NewReplacer("PRECIOUS", precious, "FILE", "'"+file+"'", "DIR", theirs).Replace(x.plant)
			if !asNobody(t, script+"; ln -s "+precious+" '"+theirs+"/k8s default%2Fother eth0'") {
				t.Fatal("nobody cannot do that")
			}
			a := New(Config{Kernel: KernelOf(h.open()), NodeName: "node-1", Logger: zap.NewNop(),
				EndpointStatusDir: func(string) string { return theirs }})
			start(t, a)
			a.set(model.NewSet(nodeObject("node-1", "10.1.0.5/24", ""),
				endpointObject("node--1-k8s-web-eth0", "node-1", "cali1", "10.244.1.7/32")))
			a.synced(true, true)
			if x.reason != "" {
				waitFor(t, "the reason", func() bool {
					n := a.Status().Notices
					return len(n) == 1 && strings.Contains(n[0].Text, x.reason)
				})
			} else {
				waitFor(t, "the file", func() bool {
					info, err := os.Lstat(file)
					if err != nil || !info.Mode().IsRegular() || info.Sys().(*syscall.Stat_t).Uid != 0 {
						return false
					}
					content, err := os.ReadFile(file)
					return err == nil && strings.Contains(string(content), "10.244.1.7/32")
				})
			}
			if content, err := os.ReadFile(precious); err != nil || string(content) != "precious" {
				t.Errorf("root's file is now %q, %v", content, err)
			}
			if _, err := os.Lstat(filepath.Join(theirs, "k8s default%2Fother eth0")); err != nil {
				t.Errorf("the link of another user is gone: %v", err)
			}
			h.eventually("-4", "default via 10.1.0.1 dev eth0", "10.244.1.7 dev cali1 proto 80 scope link metric 1024")
		})
	}
}
