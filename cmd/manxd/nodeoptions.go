package main

import (
	"os"
	"time"

	"github.com/manxnet/manx/daemon/envflag"
	"github.com/manxnet/manx/datastore/node"
)

// nodeOptions configure the registration of this node: its names, addresses and AS number, and the objects that a
// cluster needs once.
type nodeOptions struct {
	name           string
	nameFile       string
	kubernetesName string // of this node in Kubernetes, if it has another one there

	ip, ip6              string
	ipMethod, ip6Method  string
	pollInterval         time.Duration
	as                   string
	disableConflictCheck bool
	clusterType          string

	noDefaultPools, noBGPConfiguration bool
	pool4, pool6                       poolOptions
}

// poolOptions configure the default pool of one family.
type poolOptions struct {
	cidr             string
	blockSize        int
	ipip             string
	vxlan            string
	natOutgoing      string
	nodeSelector     string
	disableBGPExport string
}

// Flags implements group.
func (o *nodeOptions) Flags(s envflag.Set) {
	s.String(&o.name, "node-name", "", "name of this node; empty: the nodename file, then the host name",
		"NODENAME")
	s.String(&o.nameFile, "nodename-file", "/var/lib/calico/nodename",
		"file with the node name, for the CNI plugin", "CALICO_NODENAME_FILE")
	s.String(&o.kubernetesName, "k8s-node-ref", "", "name of this node in Kubernetes, if it has one",
		"CALICO_K8S_NODE_REF")
	s.String(&o.ip, "ip", "", "IPv4 address of this node, autodetect, or none; empty: keep the Node's, else autodetect",
		"IP")
	s.String(&o.ip6, "ip6", "", "IPv6 address of this node, autodetect, or none; empty: keep the Node's", "IP6")
	s.String(&o.ipMethod, "ip-autodetection-method", "first-found",
		"first-found, interface=RE,.. skip-interface=RE,.. cidr=C,.. can-reach=DEST or kubernetes-internal-ip",
		"IP_AUTODETECTION_METHOD")
	s.String(&o.ip6Method, "ip6-autodetection-method", "first-found", "the same for IPv6", "IP6_AUTODETECTION_METHOD")
	s.Duration(&o.pollInterval, "autodetect-poll-interval", time.Minute,
		"how often the address is detected again", "AUTODETECT_POLL_INTERVAL")
	s.String(&o.as, "as", "", "AS number of this node; empty: keep the Node's, else the cluster's", "AS")
	s.Bool(&o.disableConflictCheck, "disable-node-ip-check", false,
		"do not check whether another node has this node's address", "DISABLE_NODE_IP_CHECK")
	s.String(&o.clusterType, "cluster-type", "", "added to the cluster's type in ClusterInformation, comma separated",
		"CLUSTER_TYPE")
	s.Bool(&o.noDefaultPools, "no-default-pools", false, "do not create a pool when there is none", "NO_DEFAULT_POOLS")
	s.Bool(&o.noBGPConfiguration, "no-default-bgp-configuration", false, "do not create the BGPConfiguration default "+
		"when there is none", "MANX_NO_DEFAULT_BGP_CONFIGURATION")
	o.pool4.flags(s, "4", 26)
	o.pool6.flags(s, "6", 122)
}

// flags adds the flags of a pool to a set.
func (o *poolOptions) flags(s envflag.Set, family string, blockSize int) {
	flag, env := "ipv"+family+"pool-", "CALICO_IPV"+family+"POOL_"
	of := " of the default IPv" + family + " pool"
	s.String(&o.cidr, flag+"cidr", "", "prefix"+of+"; none: no pool", env+"CIDR")
	s.Int(&o.blockSize, flag+"block-size", blockSize, "block size"+of, env+"BLOCK_SIZE")
	s.String(&o.vxlan, flag+"vxlan", "Never", "VXLAN mode"+of, env+"VXLAN")
	s.String(&o.natOutgoing, flag+"nat-outgoing", "", "natOutgoing"+of, env+"NAT_OUTGOING")
	s.String(&o.nodeSelector, flag+"node-selector", "", "node selector"+of, env+"NODE_SELECTOR")
	s.String(&o.disableBGPExport, flag+"disable-bgp-export", "", "disableBGPExport"+of, env+"DISABLE_BGP_EXPORT")
	if family == "4" {
		s.String(&o.ipip, flag+"ipip", "Never", "IPIP mode"+of+": Never, Always or CrossSubnet", env+"IPIP")
	}
}

// Check implements group. The settings are checked as those of registration, which also depend on the host.
func (o *nodeOptions) Check() error { return nil }

// nameSources returns the places that may have the name of this node.
func (o *nodeOptions) nameSources() node.NameSources {
	return node.NameSources{Configured: o.name, File: o.nameFile, HostName: os.Hostname, Env: os.Getenv("HOSTNAME")}
}

// config returns the settings of registration, as far as they do not depend on the datastore and the host.
func (o *nodeOptions) config() node.Config {
	return node.Config{Name: o.nameSources(),
		IP: o.ip, IP6: o.ip6, IPMethod: o.ipMethod, IP6Method: o.ip6Method, PollInterval: o.pollInterval,
		AS: o.as, K8sNodeRef: o.kubernetesName, ClusterType: o.clusterType,
		DisableConflictCheck: o.disableConflictCheck,
		NoDefaultPools:       o.noDefaultPools, NoBGPConfiguration: o.noBGPConfiguration,
		Pool4: o.pool4.config(), Pool6: o.pool6.config()}
}

// detectsFromKubernetes reports whether an address is detected from Kubernetes.
func (o *nodeOptions) detectsFromKubernetes() bool {
	const method = "kubernetes-internal-ip"
	return o.ipMethod == method || o.ip6Method == method
}

func (o *poolOptions) config() node.PoolConfig {
	return node.PoolConfig{CIDR: o.cidr, BlockSize: o.blockSize, IPIP: o.ipip, VXLAN: o.vxlan,
		NATOutgoing: o.natOutgoing, DisableBGPExport: o.disableBGPExport, NodeSelector: o.nodeSelector}
}
