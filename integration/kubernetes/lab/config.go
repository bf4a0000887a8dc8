package lab

import (
	"errors"
	"fmt"
	"os"
)

// configure writes the files of the node's programs.
func (n *Node) configure() error {
	proxy, err := n.cluster.users.kubeconfig("system:kube-proxy")
	if err != nil {
		return err
	}
	if _, err := n.cluster.users.kubeconfig("system:node:" + n.Name); err != nil {
		return err
	}
	families := n.cluster.Spec.Families
	write := func(name, text string) error { return os.WriteFile(n.file(name), []byte(text), 0o644) }
	return errors.Join(
		write("containerd.toml", containerdConfig),
		write("kubelet.yaml", fmt.Sprintf(kubeletConfig, families.everyAddress(), families.clusterDNS())),
		write("kube-proxy.yaml", fmt.Sprintf(proxyConfig, proxy, n.Name, n.cluster.Spec.ProxyMode,
			families.everyAddress(), families.PodCIDRs())))
}

// Without restrict_oom_score_adj, runc fails where a process may not lower its own OOM score.
const containerdConfig = `version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "` + pauseImage + `"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/opt/cni/bin"
    conf_dir = "/etc/cni/net.d"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = false
`

// Every client in the lab may use the kubelet, so that exec and logs need no certificates.
const kubeletConfig = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cgroupDriver: cgroupfs
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
failSwapOn: false
resolvConf: ""
address: %q
clusterDNS: [%q]
clusterDomain: cluster.local
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
evictionHard: {nodefs.available: "0%%", nodefs.inodesFree: "0%%", imagefs.available: "0%%", imagefs.inodesFree: "0%%"}
imageGCHighThresholdPercent: 100
nodeStatusUpdateFrequency: 5s
`

// The maximum of connection tracking is the whole machine's, and cannot be set in a namespace.
const proxyConfig = `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
clientConnection: {kubeconfig: %q}
hostnameOverride: %s
mode: %s
bindAddress: %q
clusterCIDR: %q
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
`
