package lab

import (
	_ "embed"
	"strings"
)

const dnsImage = "localhost/manx-lab/coredns:1"

//go:embed dns.yaml
var dnsManifest string

// ImportDNS imports the image of CoreDNS on all nodes that are on.
func (c *Cluster) ImportDNS() error {
	archive, err := Image{Names: []string{dnsImage}, Entrypoint: []string{"/coredns"},
		Programs: map[string]string{"/coredns": c.Program("coredns")}}.Write(c.Dir)
	if err != nil {
		return err
	}
	return c.Import(archive)
}

// StartDNS installs CoreDNS as kubeadm does, at the address that kubelets give pods, and waits until its pods are
// ready: so the nodes need a network, and its image.
func (c *Cluster) StartDNS() error {
	manifest := strings.NewReplacer("@image@", dnsImage, "@address@", c.Spec.Families.clusterDNS()).Replace(dnsManifest)
	if err := c.Apply(manifest); err != nil {
		return err
	}
	_, err := c.Kubectl("rollout", "status", "-n", "kube-system", "deployment/coredns", patience)
	return err
}

// StopDNS removes the pods of CoreDNS, and its Service.
func (c *Cluster) StopDNS() error {
	_, err := c.Kubectl("delete", "-n", "kube-system", "deployment/coredns", "service/kube-dns", "--wait",
		"--cascade=foreground", "--ignore-not-found", patience)
	return err
}
