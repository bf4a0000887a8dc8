package node

import (
	"time"

	"github.com/manxnet/manx/datastore/model"
)

// Config is the operator's configuration of this node. Texts have the same values as the calico/node environment
// variable named beside them.
type Config struct {
	Name NameSources

	// IP, IP6: "autodetect", "none", an address with or without prefix length; "" keeps the Node's
	IP, IP6             string
	IPMethod, IP6Method string // IP_AUTODETECTION_METHOD, IP6_AUTODETECTION_METHOD
	// Kubernetes queries the address for the method kubernetes-internal-ip; nil without a kubeconfig.
	Kubernetes KubernetesAddress

	AS         string // AS: a number, or two with a dot between; "" keeps the Node's
	K8sNodeRef string // CALICO_K8S_NODE_REF

	DisableConflictCheck bool // DISABLE_NODE_IP_CHECK
	WaitForDatastore     bool // WAIT_FOR_DATASTORE

	ClusterType    string // CLUSTER_TYPE: added to that of ClusterInformation
	NoDefaultPools bool   // NO_DEFAULT_POOLS
	// NoBGPConfiguration leaves the BGPConfiguration default to others. MANX_NO_DEFAULT_BGP_CONFIGURATION
	NoBGPConfiguration bool
	Pool4, Pool6       PoolConfig
	// PolicyOnly leaves out all that is about networking, which another program does: the addresses and the AS number
	// of the Node stay as they are, and neither pools nor settings of BGP and IPAM are made.
	// CALICO_NETWORKING_BACKEND=none
	PolicyOnly bool
	NoIPv6     bool // the kernel has no IPv6, or FELIX_IPV6SUPPORT is false: no IPv6 pool is made

	// KubernetesDatastore is set if Kubernetes has the Nodes: then the kubelet creates that of this host.
	KubernetesDatastore bool
	// UsePodCIDR is set if pods get their addresses from their node's pod CIDR: then there is no IPAM. USE_POD_CIDR
	UsePodCIDR bool
	// Waiting receives the reason each time that registration has to wait; may be nil.
	Waiting func(error)

	PollInterval time.Duration // AUTODETECT_POLL_INTERVAL; 0: a minute
}

// Result is the result of registration.
type Result struct {
	Name       string
	NameFrom   string // "NODENAME", the path of the nodename file, "HOSTNAME" or "host name"
	Node       *model.Node
	Candidates []Candidate // every address of the host, IPv4 first
	Warnings   []string    // for the operator
}

func (c *Config) ip(f Family) (setting, method, variable string) {
	if f == IPv4 {
		return c.IP, c.IPMethod, "IP"
	}
	return c.IP6, c.IP6Method, "IP6"
}

// PodFamilies reports in which families pods get an address if nothing else says so: in those in which this node has
// one. A family without pools, on purpose or because the kernel has no IPv6, is none of them. Like the node's own
// address, IPv4 is the default.
func (c *Config) PodFamilies() (v4, v6 bool) {
	v6 = c.IP6 != "" && c.IP6 != noAddress && c.Pool6.CIDR != noAddress && !c.NoIPv6
	return c.IP != noAddress || !v6, v6
}

// autodetects reports whether an address is detected repeatedly while the daemon runs.
func (c *Config) autodetects() bool { return c.IP == autodetect || c.IP6 == autodetect }

// pollInterval returns the interval between detections.
func (c *Config) pollInterval() time.Duration {
	if c.PollInterval <= 0 {
		return time.Minute
	}
	return c.PollInterval
}
