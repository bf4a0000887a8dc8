package bgp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"testing"

	"github.com/manxnet/manx/integration/e2e/world"
	"github.com/manxnet/manx/integration/lab"
	"github.com/manxnet/manx/integration/namespace"
)

// testBIRDSocket queries manxd with BIRD's own client and with a common exporter for BIRD.
func (c *cluster) testBIRDSocket(t *testing.T) {
	n := c.N2
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
	mesh, tor := name("Mesh_", c.N1.IP4.String()), name("Node_", c.ToR1.Address(n).String())
	world.Contains(t, "show status", birdc(world.BIRDSocket(n), "show", "status"), "BIRD 1.6.8",
		"Router ID is "+n.IP4.String(),
		"Daemon is up and running")
	world.Contains(t, "show protocols", birdc(world.BIRDSocket(n), "show", "protocols"), mesh, tor, "Established")
	world.Contains(t, "show protocols of IPv6", birdc(world.BIRDSocket6(n), "show", "protocols"), name("Mesh_",
		c.N1.IP6.String()),
		"Established")
	world.Contains(t, "show protocols all", birdc(world.BIRDSocket(n), "show", "protocols", "all", mesh),
		"Neighbor AS:      64512",
		"Hold timer:       240/240")
	own, other := world.Blocks(t, n, "-4")[0], world.Blocks(t, c.N1, "-4")[0]
	world.Contains(t, "show route", birdc(world.BIRDSocket(n), "show", "route"), own.String()+" ", "blackhole [static1",
		other.String()+" ",
		"via "+c.N1.IP4.String(), "["+mesh)
	world.Contains(t, "show route all for", birdc(world.BIRDSocket(n), "show", "route", "all", "for",
		other.Addr().String()),
		"BGP.local_pref: 2147482623")

	c.birdExporter(t, n, mesh)
}

func (c *cluster) birdExporter(t *testing.T, n *lab.Node, mesh string) {
	const exporter = "prometheus-bird-exporter"
	if _, err := exec.LookPath(exporter); err != nil {
		t.Logf("skipped: %s is not installed", exporter)
		return
	}
	cmd := namespace.Command(n.Namespace, exporter, "-bird.socket", world.BIRDSocket(n), "-bird.socket6",
		world.BIRDSocket6(n),
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
