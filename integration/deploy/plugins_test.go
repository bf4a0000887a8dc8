package deploy

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	appsv1 "k8s.io/api/apps/v1"
)

// installStep is the running step install-cni of the DaemonSet's pod on node n1.
type installStep struct {
	*exec.Cmd
	mu  sync.Mutex
	out bytes.Buffer
}

func (s *installStep) Write(text []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.out.Write(text)
}

func (s *installStep) says() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.out.String()
}

// startInstallStep starts the step with the command and the environment that the DaemonSet gives it.
func startInstallStep(t *testing.T, kubeconfig, folder string) *installStep {
	t.Helper()
	c := find[appsv1.DaemonSet](t, render(t, nil), "DaemonSet")[0].Spec.Template.Spec.InitContainers[0]
	s := &installStep{Cmd: exec.CommandContext(t.Context(), program(t, strings.TrimPrefix(c.Command[0], "/")),
		c.Command[1:]...)}
	s.Env = []string{"KUBECONFIG=" + kubeconfig, "MANX_CNI_BIN_DIR=" + folder}
	for _, e := range c.Env {
		switch {
		case e.ValueFrom == nil:
			s.Env = append(s.Env, e.Name+"="+e.Value)
		case e.ValueFrom.FieldRef.FieldPath == "spec.nodeName":
			s.Env = append(s.Env, e.Name+"=n1")
		case e.ValueFrom.FieldRef.FieldPath == "metadata.namespace":
			s.Env = append(s.Env, e.Name+"=kube-system")
		}
	}
	s.Stdout, s.Stderr = s, s
	s.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	return s
}

// await waits until the step has printed a text.
func (s *installStep) await(t *testing.T, text string) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !strings.Contains(s.says(), text); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("the step prints %q, want %q", s.says(), text)
		}
	}
}

// The step that installs the plugin leaves the one of calico-node alone while calico-node is active on the node, or
// while that is not known; without helm's check, too. It has the rights of the chart.
func pluginOfCalicoStays(t *testing.T, config string, kubectl func(stdin string, args ...string) string) {
	dir := t.TempDir()
	folder := filepath.Join(dir, "bin")
	theirs := func() {
		t.Helper()
		if err := os.MkdirAll(folder, 0o755); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"calico", "calico-ipam"} {
			if err := os.WriteFile(filepath.Join(folder, name), []byte("Calico's"), 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
	content := func() string {
		all, _ := filepath.Glob(folder + "/*")
		text := fmt.Sprint(len(all))
		for _, name := range []string{"calico", "calico-ipam"} {
			raw, _ := os.ReadFile(filepath.Join(folder, name))
			text += " " + string(raw[:min(8, len(raw))])
		}
		return text
	}
	const untouched = "2 Calico's Calico's"
	as := func(account string) string {
		raw, err := os.ReadFile(config)
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(dir, account)
		if err := os.WriteFile(file, raw, 0o600); err != nil {
			t.Fatal(err)
		}
		token := strings.TrimSpace(kubectl("", "-n", "kube-system", "create", "token", account))
		kubectl("", "--kubeconfig", file, "config", "set-credentials", "user", "--token", token)
		return file
	}
	kubectl("", "create", "namespace", "calico-system")
	pod := `{apiVersion: v1, kind: Pod, metadata: {name: calico-node-x, namespace: calico-system, labels: {k8s-app: %s},
ownerReferences: [{apiVersion: apps/v1, kind: DaemonSet, name: calico-node, uid: "1", controller: true}]},
spec: {nodeName: n1, hostNetwork: true, containers: [{name: c, image: i}]}}`
	start := func(app string) {
		t.Helper()
		out := kubectl(fmt.Sprintf(pod, app), "create", "-f", "-") + kubectl("", "-n", "calico-system", "patch", "pod",
			"calico-node-x", "--subresource=status", "-p", `{"status":{"phase":"Running"}}`)
		if !strings.Contains(out, "patched") {
			t.Fatal(out)
		}
	}
	end := func() {
		kubectl("", "-n", "calico-system", "delete", "pod", "calico-node-x", "--grace-period=0", "--force")
	}

	theirs()
	start("canal")
	s := startInstallStep(t, as("manx-node"), folder)
	s.await(t, "calico-ipam stay: calico-node is active on this host (the pod calico-system/calico-node-x)")
	s.await(t, "kubectl label node n1 manx.io/network=manx")
	if got := content(); got != untouched {
		t.Errorf("beside an active calico-node the folder has %q", got)
	}
	end()
	if err := s.Wait(); err != nil || strings.HasPrefix(content(), "2 ") || strings.Contains(content(), "Calico's") {
		t.Errorf("after its end: %v: %s; %q", err, s.says(), content())
	}
	start("calico-node")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	s = startInstallStep(t, as("manx-node"), folder)
	done := make(chan error, 1)
	go func() { done <- s.Wait() }()
	select {
	case err := <-done:
		if err != nil {
			t.Errorf("with Manx's plugin in place: %v: %s", err, s.says())
		}
	case <-ctx.Done():
		t.Errorf("the step waits although it would change nothing: %s", s.says())
	}
	end()
	theirs()
	s = startInstallStep(t, as("manx-cni-plugin"), folder) // it may not list pods
	s.await(t, "it is not known whether a calico-node is active on this host")
	_ = s.Process.Kill()
	_ = s.Wait()
	if got := content(); !strings.Contains(got, untouched[2:]) {
		t.Errorf("without knowledge of calico-node the folder has %q", got)
	}
}
