package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/manxnet/manx/integration/kubernetes/cluster"
	"github.com/manxnet/manx/integration/kubernetes/lab"
)

// registry replaces the registries of the tests' images.
const registry = "localhost/e2e"

// regression is the one program of the tests beside agnhost.
const regression = "regression-issue-74839"

// install switches the nodes on, with the images that the tests need, and installs Manx and a DNS.
func install(c *lab.Cluster, manx cluster.Installation) error {
	archives, err := images(c)
	if err != nil {
		return err
	}
	if err := c.StartNodes(); err != nil {
		return err
	}
	for _, archive := range archives {
		if err := c.Import(archive); err != nil {
			return err
		}
	}
	if err := errors.Join(manx.Prepare(c), c.ImportDNS()); err != nil {
		return err
	}
	if err := manx.Install(c); err != nil {
		return err
	}
	if err := c.WaitNodes(); err != nil {
		return err
	}
	// The API server connects to pods for some of the tests.
	if err := outside(c, manx); err != nil {
		return err
	}
	return c.StartDNS()
}

// outside connects hosts outside the cluster with pods, and with Services of type LoadBalancer where Manx announces
// them.
func outside(c *lab.Cluster, manx cluster.Installation) error {
	network := manx.Network()
	if network.Mode != cluster.BGP {
		return transit(c)
	}
	if err := cluster.Peer(c, manx); err != nil || !network.Families.Has4() {
		return err
	}
	return balancers(c, manx)
}

// transit leads packets from outside to pods through node3, which gives them its own address, since nobody tells the
// router where pods are. So an API server outside of a cluster without BGP reaches pods.
func transit(c *lab.Cluster) error {
	via := c.Worker("node3")
	for _, pods := range strings.Split(c.Spec.Families.PodCIDRs(), ",") {
		gateway, family := via.IP4, "ip"
		if strings.Contains(pods, ":") {
			gateway, family = via.IP6, "ip6"
		}
		rules := fmt.Sprintf("table %s transit { chain postrouting { type nat hook postrouting priority 90; "+
			"iifname eth0 oifname \"vxlan*\" %s daddr %s masquerade; }; }", family, family, pods)
		if err := errors.Join(runInNamespace(c.ToRs[0].Namespace, "ip", "route", "add", pods, "via", gateway.String()),
			runInNamespace(via.Namespace, "nft", rules)); err != nil {
			return err
		}
	}
	return nil
}

// images makes archives under the names in the tests of this version of Kubernetes. The programs of the tests are
// Kubernetes' own; the tools beside them, such as dig, are Debian's.
func images(c *lab.Cluster) ([]string, error) {
	tools, err := c.ToolsOf(registry+"/agnhost:2.53", registry+"/busybox:1.36.1-1", registry+"/jessie-dnsutils:1.7")
	if err != nil {
		return nil, err
	}
	tools.Programs["/coredns"] = c.Program("coredns")
	// The shell of busybox prefers its own curl and nc, which have fewer options. Its wget crashes with the libraries
	// of the other programs.
	tools.Links["/bin/sh"] = "dash"
	for _, program := range []string{"curl", "nc", "dash", "dig", "getent", "wget"} {
		if err := tools.AddInstalled(program); err != nil {
			return nil, err
		}
	}
	// busybox's wget tries once, Debian's wget 20 times by default.
	wgetrc := filepath.Join(c.Dir, "wgetrc")
	if err := os.WriteFile(wgetrc, []byte("tries = 1\n"), 0o644); err != nil {
		return nil, err
	}
	tools.Programs["/etc/wgetrc"] = wgetrc
	// getent reads the hosts file only if configured to.
	hosts := filepath.Join(c.Dir, "nsswitch.conf")
	if err := os.WriteFile(hosts, []byte("hosts: files dns\n"), 0o644); err != nil {
		return nil, err
	}
	tools.Programs["/etc/nsswitch.conf"] = hosts
	// agnhost serves TLS with these; their owner is not checked.
	tools.Programs["/localhost.crt"] = filepath.Join(c.Dir, "pki", "server.crt")
	tools.Programs["/localhost.key"] = filepath.Join(c.Dir, "pki", "server.key")
	pause := lab.Image{Names: []string{registry + "/pause:3.10"}, Entrypoint: []string{"/pause"},
		Programs: map[string]string{"/pause": tools.Programs["/pause"]}}
	boom := lab.Image{Names: []string{registry + "/" + regression + ":1.2"}, Entrypoint: []string{"/" + regression},
		Programs: map[string]string{"/" + regression: c.Program(regression)}}
	var archives []string
	for _, image := range []lab.Image{tools, pause, boom} {
		archive, err := image.Write(c.Dir)
		if err != nil {
			return nil, err
		}
		archives = append(archives, archive)
	}
	return archives, nil
}
