package lab

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/manxnet/manx/integration/namespace"
)

// Pod is a namespace that the CNI plugin attached to a node.
type Pod struct {
	Name      string
	Namespace string
	Node      *Node
	IPs       []netip.Addr

	// Added and Deleted are the cost of the plugin's last run: time, and processor time of its processes.
	Added, Deleted Cost

	conf map[string]any
}

// Cost is the time of a program's run.
type Cost struct{ Wall, CPU time.Duration }

// openNetwork lets any address reach the pods of the lab and be reached by them. By default the CNI plugin makes a
// profile that allows only traffic from other pods of the network, but tests of routes send from outside.
const openNetwork = `
apiVersion: projectcalico.org/v3
kind: Profile
metadata: {name: k8s-pod-network}
spec:
  ingress: [{action: Allow}]
  egress: [{action: Allow}]
`

// open makes that profile before the first pod, unless it exists.
func (n *Node) open() error {
	n.lab.opening.Lock()
	defer n.lab.opening.Unlock()
	if n.lab.opened {
		return nil
	}
	if _, err := n.Manxctl("get", "profile", "k8s-pod-network"); err != nil {
		if err := n.Apply(openNetwork); err != nil {
			return err
		}
	}
	n.lab.opened = true
	return nil
}

// AddPod makes a namespace and has the CNI plugin of the node attach it, as a container runtime would.
// The name must be unique in the lab. Options change the network configuration.
func (n *Node) AddPod(name string, options ...func(conf map[string]any)) (*Pod, error) {
	if err := n.open(); err != nil {
		return nil, err
	}
	p := &Pod{Name: name, Namespace: n.lab.Spec.Name + "-" + name, Node: n}
	if err := namespaceIn(p.Namespace, filepath.Join(n.Dir, "pods")); err != nil {
		return nil, err
	}
	p.conf = n.cniConf()
	for _, o := range options {
		o(p.conf)
	}
	out, err := p.cni("ADD")
	if err != nil {
		return nil, err
	}
	var result struct {
		IPs []struct {
			Address netip.Prefix `json:"address"`
		} `json:"ips"`
	}
	if err := json.Unmarshal(out, &result); err != nil {
		return nil, fmt.Errorf("pod %s: CNI result %s: %w", name, out, err)
	}
	for _, ip := range result.IPs {
		p.IPs = append(p.IPs, ip.Address.Addr())
	}
	if len(p.IPs) == 0 {
		return nil, fmt.Errorf("pod %s: the CNI plugin gave it no address: %s", name, out)
	}
	return p, nil
}

// DualStack makes the CNI plugin assign an IPv6 address too.
func DualStack(conf map[string]any) {
	conf["ipam"].(map[string]any)["assign_ipv6"] = "true"
}

func (n *Node) cniConf() map[string]any {
	conf := map[string]any{
		"cniVersion": "1.0.0", "name": "k8s-pod-network", "type": "calico",
		"datastore_type": "etcdv3",
		"nodename_file":  filepath.Join(n.Dir, "nodename"),
		"ipam_lock_file": filepath.Join(n.Dir, "ipam.lock"),
		"manxd_socket":   n.Socket(), "endpoint_status_dir": filepath.Join(n.Dir, "endpoint-status"),
		"log_level": "info",
		"ipam":      map[string]any{"type": "calico-ipam"},
	}
	if n.outside != "" {
		conf["etcd_endpoints"] = n.outside
	}
	return conf
}

// Delete has the CNI plugin detach the pod.
func (p *Pod) Delete() error {
	_, err := p.cni("DEL")
	return err
}

// cni runs the plugin under its Calico name, in the namespace of the node.
func (p *Pod) cni(verb string) ([]byte, error) {
	bin, err := p.Node.cniBin()
	if err != nil {
		return nil, err
	}
	conf, err := json.Marshal(p.conf)
	if err != nil {
		return nil, err
	}
	cmd := namespace.Command(p.Node.Namespace, filepath.Join(bin, "calico"))
	cmd.Env = append(os.Environ(),
		"CNI_COMMAND="+verb, "CNI_CONTAINERID="+p.containerID(), "CNI_NETNS=/run/netns/"+p.Namespace,
		"CNI_IFNAME=eth0", "CNI_PATH="+bin)
	cmd.Stdin = bytes.NewReader(conf)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	began := time.Now()
	err = cmd.Run()
	if s := cmd.ProcessState; s != nil {
		cost := Cost{Wall: time.Since(began), CPU: s.UserTime() + s.SystemTime()}
		if verb == "ADD" {
			p.Added = cost
		} else {
			p.Deleted = cost
		}
	}
	if err != nil {
		return nil, fmt.Errorf("pod %s: CNI %s: %w: %s %s", p.Name, verb, err, stdout.Bytes(), stderr.Bytes())
	}
	return stdout.Bytes(), nil
}

// containerID has the form of a container runtime's ID: the plugin names interfaces after its first characters.
func (p *Pod) containerID() string { return fmt.Sprintf("%x", sha256.Sum256([]byte(p.Namespace))) }

// cniBin is a folder with manx-cni under the names that a Calico configuration uses.
func (n *Node) cniBin() (string, error) {
	dir := filepath.Join(n.lab.Dir, "cni-bin")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	for _, name := range []string{"calico", "calico-ipam"} {
		err := os.Symlink(filepath.Join(n.lab.Spec.Bin, "manx-cni"), filepath.Join(dir, name))
		if err != nil && !os.IsExist(err) {
			return "", err
		}
	}
	return dir, nil
}

// IP4 is the pod's IPv4 address.
func (p *Pod) IP4() netip.Addr { return p.ip(netip.Addr.Is4) }

// IP6 is the pod's IPv6 address.
func (p *Pod) IP6() netip.Addr { return p.ip(netip.Addr.Is6) }

func (p *Pod) ip(family func(netip.Addr) bool) netip.Addr {
	for _, a := range p.IPs {
		if family(a) {
			return a
		}
	}
	return netip.Addr{}
}

// Interface is the name of the pod's interface on its node.
func (p *Pod) Interface() string { return "cali" + p.containerID()[:11] }
