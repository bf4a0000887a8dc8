package cluster

import (
	_ "embed"
	"errors"
	"path/filepath"
	"strings"

	"github.com/manxnet/manx/integration/kubernetes/lab"
	"github.com/manxnet/manx/integration/stock"
)

//go:embed testdata/by-hand.yaml
var byHandManifest string

// byHand installs an unpublished DaemonSet, with programs of this checkout and the control plane's etcd as datastore.
type byHand struct{ Bin string }

const byHandImage = "localhost/manx-lab/manx:1"

// Prepare makes the image.
func (h byHand) Prepare(c *lab.Cluster) error {
	gobgp, err := stock.Gobgp3.Path()
	if err != nil {
		return err
	}
	programs := map[string]string{"/gobgp": gobgp, "/bin/busybox": "/usr/bin/busybox"}
	for _, p := range []string{"manxd", "manxctl", "manx-cni"} {
		programs["/"+p] = filepath.Join(h.Bin, p)
	}
	links := map[string]string{}
	for _, applet := range []string{"sh", "cp", "mv"} {
		links["/bin/"+applet] = "busybox"
	}
	archive, err := lab.Image{Names: []string{byHandImage}, Entrypoint: []string{"/manxd"}, Programs: programs,
		Links: links}.Write(c.Dir)
	if err != nil {
		return err
	}
	return c.Import(archive)
}

// Install applies the manifest.
func (h byHand) Install(c *lab.Cluster) error {
	return c.Apply(strings.NewReplacer("@etcd@", c.Etcd(), "@image@", byHandImage).Replace(byHandManifest))
}

// Network is BGP and IPv4.
func (h byHand) Network() Network { return Network{BGP, lab.IPv4} }

// Update restarts all pods, one after the other.
func (h byHand) Update(c *lab.Cluster) error {
	_, err := c.Kubectl("rollout", "restart", "-n", namespace, "daemonset/manx-node")
	return err
}

// Uninstall removes the DaemonSet, manxd's objects in the kernel and the files.
func (h byHand) Uninstall(c *lab.Cluster) error {
	if _, err := c.Kubectl("delete", "-n", namespace, "daemonset/manx-node", "configmap/manx-cni", "--wait",
		"--cascade=foreground"); err != nil {
		return err
	}
	var errs []error
	for _, n := range c.Workers {
		_, err := n.RunIn(filepath.Join(h.Bin, "manxd"), "cleanup")
		_, rmErr := n.RunIn("sh", "-c", "rm -rf /etc/cni/net.d/10-manx.conflist /opt/cni/bin/calico "+
			"/opt/cni/bin/calico-ipam /run/manx /run/calico /var/lib/calico")
		errs = append(errs, err, rmErr)
	}
	return errors.Join(errs...)
}

// Store stores an object with manxctl.
func (h byHand) Store(c *lab.Cluster, yaml string) error {
	cmd := c.Admin(filepath.Join(h.Bin, "manxctl"), "--etcd-endpoints="+c.Etcd(), "apply", "-f", "-")
	cmd.Stdin = strings.NewReader(yaml)
	out, err := cmd.CombinedOutput()
	return withOutput(out, err)
}
