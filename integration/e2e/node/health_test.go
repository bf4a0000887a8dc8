package node

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/manxnet/manx/integration/e2e/world"
	"github.com/manxnet/manx/integration/lab"
)

// TestProbes runs the probes of the DaemonSet, as it is shipped, while another program holds the port of health and
// metrics and answers there: the kubelet would end manxd again and again if it believed that answer.
func TestProbes(t *testing.T) {
	l := world.NewLab(t, lab.Spec{Name: world.LabName("q"), PlainRouters: true, Nodes: []lab.NodeSpec{{Name: "n1"}}})
	n := l.Nodes[0]
	squatter, err := n.Listen("tcp", "127.0.0.1:9099")
	must(t, err)
	answers := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "forged", http.StatusInternalServerError)
	})}
	t.Cleanup(func() { _ = answers.Close() })
	go func() { _ = answers.Serve(squatter) }()
	probes := shippedProbes(t)
	must(t, n.StartManxd(append(n.EmbedDatastore(), "--no-default-pools")...))
	for _, name := range []string{"livenessProbe", "readinessProbe"} {
		eventually(t, func() error { return probes[name].run(n) })
	}
	must(t, n.Manxd().Signal(syscall.SIGSTOP))
	err = probes["livenessProbe"].run(n)
	must(t, n.Manxd().Signal(syscall.SIGCONT))
	if err == nil || !strings.Contains(err.Error(), "manxd cannot be reached") {
		t.Errorf("a stopped manxd is alive: %v", err)
	}
	eventually(t, func() error { return probes["livenessProbe"].run(n) })
	must(t, n.Manxd().Stop(limit))
	if err := probes["livenessProbe"].run(n); err == nil {
		t.Error("a manxd that has ended is alive")
	}
}

// probe is a probe of a container.
type probe struct {
	HTTPGet *struct{ Path string }
	Exec    *struct{ Command []string }
}

func shippedProbes(t *testing.T) map[string]probe {
	t.Helper()
	text, err := os.ReadFile("../../../deploy/manifests/manx-kubernetes.yaml")
	must(t, err)
	for _, document := range bytes.Split(text, []byte("\n---\n")) {
		var object struct {
			Kind string
			Spec struct {
				Template struct {
					Spec struct{ Containers []map[string]any }
				}
			}
		}
		must(t, yaml.Unmarshal(document, &object))
		if object.Kind != "DaemonSet" {
			continue
		}
		probes := map[string]probe{}
		for _, name := range []string{"livenessProbe", "readinessProbe"} {
			var p probe
			part, err := yaml.Marshal(object.Spec.Template.Spec.Containers[0][name])
			must(t, err)
			must(t, yaml.Unmarshal(part, &p))
			probes[name] = p
		}
		return probes
	}
	t.Fatal("the manifest has no DaemonSet")
	return nil
}

// run runs the probe on a node of the lab, where the programs, the socket and the port are elsewhere.
func (p probe) run(n *lab.Node) error {
	if p.HTTPGet != nil {
		text, err := n.Get(p.HTTPGet.Path)
		if err != nil {
			return fmt.Errorf("%w: %s", err, text)
		}
		return nil
	}
	_, err := n.Run(filepath.Join("../../../bin", filepath.Base(p.Exec.Command[0])),
		append(p.Exec.Command[1:], "--socket="+n.Socket())...)
	return err
}
