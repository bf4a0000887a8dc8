package node

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/manxnet/manx/integration/e2e/world"
	"github.com/manxnet/manx/integration/lab"
	"github.com/manxnet/manx/integration/namespace"
)

// TestCalicoManifests runs the containers, probes and hooks of calico-node's manifests, unchanged but for the
// datastore, in a file system with the names of the image and nothing else.
func TestCalicoManifests(t *testing.T) {
	manifests, err := filepath.Glob("testdata/*.yaml")
	must(t, err)
	page, err := os.ReadFile("../../../docs/calico-manifest.md")
	must(t, err)
	l := world.NewLab(t, lab.Spec{Name: world.LabName("m"), PlainRouters: true, Nodes: []lab.NodeSpec{{Name: "n1"}}})
	for _, path := range manifests {
		t.Run(filepath.Base(path), func(t *testing.T) {
			m := readCalicoManifest(t, l, path)
			for _, c := range m.pod.InitContainers {
				must(t, m.run(c, c.Name, c.argv()))
			}
			node := m.pod.Containers[0]
			explained := m.output(t, node, []string{"/manxd", "config", "explain"}) +
				m.output(t, node, []string{"/manxd", "config", "explain", "--calico", "--all"})
			for _, e := range node.Env {
				if !strings.Contains(explained, e.Name) && !strings.Contains(string(page), "`"+e.Name+"`") {
					t.Errorf("%s is neither a setting nor on the page", e.Name)
				}
			}
			live, ready := node.LivenessProbe.Exec.Command, node.ReadinessProbe.Exec.Command
			err := m.run(node, node.Name, live)
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.ExitCode() != 4 ||
				!strings.Contains(err.Error(), "manxd cannot be reached") {
				t.Errorf("without a manxd the node is alive: %v", err)
			}
			daemon := m.command(node, node.Name, node.argv())
			var log bytes.Buffer
			daemon.Stdout, daemon.Stderr = &log, &log
			must(t, daemon.Start())
			t.Cleanup(func() {
				_ = daemon.Process.Signal(syscall.SIGTERM)
				if err := daemon.Wait(); err != nil || t.Failed() {
					t.Errorf("%v\n%s", err, world.Tail(log.String(), 30))
				}
			})
			eventually(t, func() error { return m.run(node, node.Name, ready) })
			must(t, m.run(node, node.Name, live))
			out := m.output(t, node, node.Lifecycle.PreStop.Exec.Command)
			if !strings.Contains(out, "nothing is withdrawn") {
				t.Errorf("the hook says %q", out)
			}
			eventually(t, func() error {
				text, err := os.ReadFile(filepath.Join(m.host, "etc/cni/net.d/10-calico.conflist"))
				if err == nil && !strings.Contains(string(text), `"nodename": "n1"`) {
					err = fmt.Errorf("the network configuration is %s", text)
				}
				return err
			})
			if _, err := os.Stat(filepath.Join(m.host, "opt/cni/bin/calico-ipam")); err != nil {
				t.Error(err)
			}
			must(t, m.run(node, node.Name, ready))
		})
	}
}

// calicoManifest is the DaemonSet of a manifest on one host.
type calicoManifest struct {
	node *lab.Node
	host string // the host's folders
	bin  string
	pod  calicoPod
	keys map[string]string // of the ConfigMap
}

type calicoPod struct {
	InitContainers, Containers []calicoContainer
	Volumes                    []struct {
		Name     string
		HostPath struct{ Path string }
	}
}

type calicoContainer struct {
	Name          string
	Command, Args []string
	Env           []struct {
		Name, Value string
		ValueFrom   struct {
			FieldRef        struct{ FieldPath string }
			ConfigMapKeyRef struct{ Key string }
		}
	}
	VolumeMounts                  []struct{ Name, MountPath string }
	LivenessProbe, ReadinessProbe probe
	Lifecycle                     struct{ PreStop probe }
}

// argv is the command of a container: that of the image is /manxd.
func (c calicoContainer) argv() []string {
	if len(c.Command) > 0 {
		return slices.Concat(c.Command, c.Args)
	}
	return append([]string{"/manxd"}, c.Args...)
}

func readCalicoManifest(t *testing.T, l *lab.Lab, path string) *calicoManifest {
	t.Helper()
	bin, err := filepath.Abs(l.Spec.Bin)
	must(t, err)
	m := &calicoManifest{node: l.Nodes[0], host: filepath.Join(l.Dir, filepath.Base(path)), bin: bin}
	text, err := os.ReadFile(path)
	must(t, err)
	for document := range bytes.SplitSeq(text, []byte("\n---\n")) {
		var o struct {
			Data map[string]string
			Spec struct{ Template struct{ Spec calicoPod } }
		}
		must(t, yaml.Unmarshal(document, &o))
		if o.Data != nil {
			m.keys = o.Data
		} else {
			m.pod = o.Spec.Template.Spec
		}
	}
	return m
}

// command runs a command in a container of the pod: with its variables and mounts, and the files of the image.
func (m *calicoManifest) command(c calicoContainer, name string, argv []string) *exec.Cmd {
	root := m.host + "-" + name
	lines := []string{"set -e", "mkdir -p " + root + "/{programs,proc,sys,dev,tmp,run,var,etc}",
		"mount --bind " + m.bin + " " + root + "/programs", "mount -t proc proc " + root + "/proc",
		"mount --rbind /sys " + root + "/sys", "mount --bind /dev " + root + "/dev"}
	links, _ := os.ReadFile("../../../deploy/image-links")
	for _, program := range []string{"manxd", "manxctl", "manx-supervise", "manx-cni", "manx-cni-direct"} {
		lines = append(lines, fmt.Sprintf("ln -sfn /programs/%s %s/%[1]s", program, root))
	}
	for link := range strings.Lines(string(links)) {
		at, target, _ := strings.Cut(strings.TrimSpace(link), " ")
		lines = append(lines, fmt.Sprintf("mkdir -p %s%s; ln -sfn %s %[1]s%[4]s", root, filepath.Dir(at), target, at))
	}
	for _, mount := range c.VolumeMounts {
		for _, v := range m.pod.Volumes {
			if v.Name == mount.Name {
				from, to := m.host+v.HostPath.Path, root+mount.MountPath
				lines = append(lines, fmt.Sprintf("mkdir -p %s %s; mount --bind %[1]s %[2]s", from, to))
			}
		}
	}
	lines = append(lines, "exec chroot "+root+` "$@"`)
	cmd := namespace.Command(m.node.Namespace, "unshare", append([]string{"--mount", "bash", "-c",
		strings.Join(lines, "\n"), "bash"}, argv...)...)
	cmd.Env = m.env(c)
	return cmd
}

// env has the variables of a container, with a datastore that needs no Kubernetes API.
func (m *calicoManifest) env(c calicoContainer) []string {
	values := map[string]string{}
	env := []string{"PATH=/:/usr/bin:/bin:/sbin"}
	for _, e := range c.Env {
		value := e.Value
		switch field := e.ValueFrom.FieldRef.FieldPath; {
		case field == "spec.nodeName":
			value = m.node.Name
		case field == "status.hostIP":
			value = m.node.IP4.String()
		case e.ValueFrom.ConfigMapKeyRef.Key != "":
			value = m.keys[e.ValueFrom.ConfigMapKeyRef.Key]
		case e.Name == "DATASTORE_TYPE":
			value = "embedded"
		}
		for name, known := range values {
			value = strings.ReplaceAll(value, "$("+name+")", known)
		}
		values[e.Name] = value
		env = append(env, e.Name+"="+value)
	}
	return env
}

func (m *calicoManifest) run(c calicoContainer, name string, argv []string) error {
	if out, err := m.command(c, name, argv).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err, out)
	}
	return nil
}

func (m *calicoManifest) output(t *testing.T, c calicoContainer, argv []string) string {
	t.Helper()
	out, err := m.command(c, c.Name, argv).CombinedOutput()
	if err != nil {
		t.Errorf("%s: %v: %s", strings.Join(argv, " "), err, out)
	}
	return string(out)
}
