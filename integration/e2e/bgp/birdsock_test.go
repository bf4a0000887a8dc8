package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/manxnet/manx/integration/lab"
)

// birdSocket is where a node's manxd answers as BIRD for IPv4 does.
func birdSocket(n *lab.Node) string { return filepath.Join(n.Dir, "bird.ctl") }

func birdSocket6(n *lab.Node) string { return filepath.Join(n.Dir, "bird6.ctl") }

// testBIRDSocket asks manxd with BIRD's own client and with the exporter that people run beside BIRD.
func (c *cluster) testBIRDSocket(t *testing.T) {
	n := c.n2
	birdc := func(socket string, words ...string) string {
		t.Helper()
		out, err := exec.Command("birdc", append([]string{"-s", socket}, words...)...).CombinedOutput()
		if err != nil {
			t.Fatalf("birdc %v: %v: %s", words, err, out)
		}
		return string(out)
	}
	name := func(prefix, address string) string {
		return prefix + strings.NewReplacer(".", "_", ":", "_").Replace(address)
	}
	mesh, tor := name("Mesh_", c.n1.IP4.String()), name("Node_", c.tor1.Address(n).String())
	contains(t, "show status", birdc(birdSocket(n), "show", "status"), "BIRD 1.6.8", "Router ID is "+n.IP4.String(),
		"Daemon is up and running")
	contains(t, "show protocols", birdc(birdSocket(n), "show", "protocols"), mesh, tor, "Established")
	contains(t, "show protocols of IPv6", birdc(birdSocket6(n), "show", "protocols"), name("Mesh_", c.n1.IP6.String()),
		"Established")
	contains(t, "show protocols all", birdc(birdSocket(n), "show", "protocols", "all", mesh), "Neighbor AS:      64512",
		"Hold timer:       240/240")
	own, other := blocks(t, n, "-4")[0], blocks(t, c.n1, "-4")[0]
	contains(t, "show route", birdc(birdSocket(n), "show", "route"), own.String()+" ", "blackhole [static1",
		other.String()+" ",
		"via "+c.n1.IP4.String(), "["+mesh)
	contains(t, "show route all for", birdc(birdSocket(n), "show", "route", "all", "for", other.Addr().String()),
		"BGP.local_pref: 2147482623")

	c.birdExporter(t, n, mesh)
}

func (c *cluster) birdExporter(t *testing.T, n *lab.Node, mesh string) {
	const exporter = "prometheus-bird-exporter"
	if _, err := exec.LookPath(exporter); err != nil {
		t.Logf("skipped: %s is not installed", exporter)
		return
	}
	cmd := lab.InNamespace(n.Namespace, exporter, "-bird.socket", birdSocket(n), "-bird.socket6", birdSocket6(n),
		"-web.listen-address", "127.0.0.1:9324")
	must(t, cmd.Start())
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	client := http.Client{Transport: &http.Transport{
		DialContext: func(_ context.Context, network, address string) (net.Conn, error) {
			return n.Dial(network, address)
		}}}
	defer client.CloseIdleConnections()
	eventually(t, func() error {
		r, err := client.Get("http://127.0.0.1:9324/metrics")
		if err != nil {
			return err
		}
		defer r.Body.Close()
		b, err := io.ReadAll(r.Body)
		for line := range strings.Lines(string(b)) {
			if strings.HasPrefix(line, "bird_protocol_up{") && strings.Contains(line, `name="`+mesh+`"`) &&
				strings.HasSuffix(line, "} 1\n") {
				return nil
			}
		}
		return errors.Join(err, fmt.Errorf("the exporter does not show that %s is up:\n%s", mesh, b))
	})
}
