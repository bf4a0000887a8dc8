package settings

// fields has the fields of the other kinds, by the name of the Go type without Spec: types that several kinds share,
// such as Rule, are there once.
var fields = []struct {
	typ    string
	groups []group
}{
	{"BGPConfiguration", []group{
		{names: `nodeToNodeMeshEnabled asNumber serviceLoadBalancerIPs serviceExternalIPs serviceClusterIPs
			serviceLoadBalancerAggregation communities prefixAdvertisements listenPort nodeMeshPassword
			nodeMeshMaxRestartTime bindMode localWorkloadPeeringIPV4 localWorkloadPeeringIPV6 ipv4NormalRoutePriority
			ipv6NormalRoutePriority ignoredInterfaces`},
		{state: Differently, names: "logSeverityScreen", text: logText},
		{state: Differently, names: "programClusterRoutes",
			text: "one process makes all routes: those of pools with IPIP always have protocol 80"},
	}},
	{"Community", []group{{names: "name value"}}},
	{"PrefixAdvertisement", []group{{names: "cidr communities"}}},
	{"ServiceClusterIPBlock", []group{{names: "cidr"}}},
	{"ServiceExternalIPBlock", []group{{names: "cidr"}}},
	{"ServiceLoadBalancerIPBlock", []group{{names: "cidr"}}},
	{"BGPPassword", []group{{names: "secretKeyRef"}}},
	{"BGPPeer", []group{{names: `node nodeSelector peerIP asNumber localASNumber peerSelector keepOriginalNextHop
		nextHopMode password sourceAddress maxRestartTime keepaliveTime numAllowedLocalASNumbers ttlSecurity
		reachableBy filters localWorkloadSelector reversePeering`}}},
	{"BGPFilter", []group{{names: "exportV4 importV4 exportV6 importV6"}}},
	{"BGPFilterRule", []group{{names: `cidr prefixLength source interface matchOperator peerType communities
		asPathPrefix priority action operations`}}},
	{"BGPFilterPrefixLength", []group{{names: "min max"}}},
	{"BGPFilterCommunityMatch", []group{{names: "values"}}},
	{"BGPFilterOperation", []group{{names: "addCommunity prependASPath setPriority"}}},
	{"BGPFilterAddCommunity", []group{{names: "value"}}},
	{"BGPFilterPrependASPath", []group{{names: "prefix"}}},
	{"BGPFilterSetPriority", []group{{names: "value"}}},
	{"CalicoNodeStatus", []group{{names: "node classes updatePeriodSeconds"}}},
	{"CalicoNodeStatusStatus", []group{{names: "lastUpdated agent bgp routes"}}},
	{"CalicoNodeAgentStatus", []group{{names: "birdV4 birdV6"}}},
	{"BGPDaemonStatus", []group{{names: "state version routerID lastBootTime lastReconfigurationTime"}}},
	{"CalicoNodeBGPStatus", []group{{names: `numberEstablishedV4 numberNotEstablishedV4 numberEstablishedV6
		numberNotEstablishedV6 peersV4 peersV6`}}},
	{"CalicoNodePeer", []group{{names: "peerIP type state since"}}},
	{"CalicoNodeBGPRouteStatus", []group{{names: "routesV4 routesV6"}}},
	{"CalicoNodeRoute", []group{{names: "type destination gateway interface learnedFrom"}}},
	{"CalicoNodeRouteLearnedFrom", []group{{names: "sourceType peerIP"}}},
	{"ClusterInformation", []group{
		{names: "clusterGUID clusterType datastoreReady"},
		{state: Differently, names: "calicoVersion",
			text: "Manx does not write it, and keeps the value of Calico's programs"},
		{state: NotNeeded, names: "variant", text: "about the commercial edition"},
	}},
	{"GlobalNetworkPolicy", []group{
		{names: `tier order ingress egress selector types doNotTrack preDNAT applyOnForward serviceAccountSelector
			namespaceSelector`},
		{state: NotNeeded, names: "performanceHints", text: "policies are always prepared for the workloads to come"},
	}},
	{"NetworkPolicy", []group{
		{names: "tier order ingress egress selector types serviceAccountSelector"},
		{state: NotNeeded, names: "performanceHints", text: "policies are always prepared for the workloads to come"},
	}},
	{"StagedGlobalNetworkPolicy", []group{
		{names: `tier order ingress egress selector types doNotTrack preDNAT applyOnForward serviceAccountSelector
			namespaceSelector`},
		{state: Differently, names: "stagedAction", text: stagedText},
		{state: NotNeeded, names: "performanceHints", text: "policies are always prepared for the workloads to come"},
	}},
	{"StagedNetworkPolicy", []group{
		{names: "tier order ingress egress selector types serviceAccountSelector"},
		{state: Differently, names: "stagedAction", text: stagedText},
		{state: NotNeeded, names: "performanceHints", text: "policies are always prepared for the workloads to come"},
	}},
	{"StagedKubernetesNetworkPolicy", []group{
		{names: "podSelector ingress egress policyTypes"},
		{state: Differently, names: "stagedAction", text: stagedText},
	}},
	{"Rule", []group{
		{names: "action ipVersion protocol icmp notProtocol notICMP source destination"},
		{state: NotDone, names: "http",
			text: "the rule matches by its addresses and ports alone, as Felix' without dikastes"},
	}},
	{"EntityRule", []group{{names: `nets selector namespaceSelector services ports notNets notSelector notPorts
		serviceAccounts`}}},
	{"ICMPFields", []group{{names: "type code"}}},
	{"ServiceMatch", []group{{names: "name namespace"}}},
	{"ServiceAccountMatch", []group{{names: "names selector"}}},
	{"HTTPMatch", []group{{state: NotNeeded, names: "methods paths", text: "it matters only with http of a Rule"}}},
	{"HTTPPath", []group{{state: NotNeeded, names: "exact prefix", text: "it matters only with http of a Rule"}}},
	{"GlobalNetworkSet", []group{{names: "nets"}}},
	{"NetworkSet", []group{{names: "nets"}}},
	{"Profile", []group{{names: "ingress egress labelsToApply"}}},
	{"Tier", []group{{names: "order defaultAction"}}},
	{"TierStatus", []group{{state: Differently, names: "conditions", text: "Manx keeps them, and writes none"}}},
	{"HostEndpoint", []group{{names: "node interfaceName expectedIPs profiles ports"}}},
	{"EndpointPort", []group{{names: "name protocol port hostPort hostIP"}}},
	{"WorkloadEndpoint", []group{{names: `orchestrator workload node containerID pod endpoint serviceAccountName
		ipNetworks ipNATs ipv4Gateway ipv6Gateway profiles interfaceName mac ports allowSpoofedSourcePrefixes
		qosControls`}}},
	{"IPNAT", []group{{names: "internalIP externalIP"}}},
	{"QoSControls", []group{{names: `ingressBandwidth ingressBurst ingressPeakrate ingressMinburst egressBandwidth egressBurst
		egressPeakrate egressMinburst ingressPacketRate ingressPacketBurst egressPacketRate egressPacketBurst
		ingressMaxConnections egressMaxConnections dscp`}}},
	{"IPAMConfiguration", []group{
		{names: "strictAffinity autoAllocateBlocks maxBlocksPerHost ipCooldownSeconds"},
		{state: Differently, names: "kubeVirtVMAddressPersistence",
			text: "with Disabled the target of a live migration has an address of its own, where Calico refuses it"},
	}},
	{"IPPool", []group{
		{names: `cidr ipipMode vxlanMode natOutgoing disabled disableBGPExport blockSize nodeSelector
			namespaceSelector allowedUses assignmentMode`},
	}},
	{"IPPoolStatus", []group{{state: Differently, names: "conditions",
		text: "a pool that is not Allocatable gives no address; Manx writes none of them"}}},
	{"IPReservation", []group{{names: "reservedCIDRs"}}},
	{"KubeControllers", []group{
		{names: `etcdV3CompactionPeriod controllers node policy workloadEndpoint serviceAccount namespace loadBalancer
			migration`},
		{state: Differently, names: "healthChecks", text: "the controllers are a part of the health of manxd"},
		{state: Differently, names: "logSeverityScreen", text: "the level of the log is that of manxd"},
		{state: Differently, names: "prometheusMetricsPort",
			text: "their metrics are among those of manxd, at --http-listen"},
		{state: NotDone, names: "debugProfilePort",
			text: "the controllers have no listener of their own: debugPort of FelixConfiguration has those of manxd"},
	}},
	{"KubeControllersStatus", []group{{names: "runningConfig environmentVars"}}},
	{"NodeController", []group{{names: "reconcilerPeriod syncLabels hostEndpoint leakGracePeriod"}}},
	{"AutoHostEndpoints", []group{{names: "autoCreate createDefaultHostEndpoint templates"}}},
	{"HostEndpointTemplate", []group{{names: `generateName interfaceCIDRs interfacePattern labels annotations
		nodeSelector`}}},
	{"LoadBalancerControllerConfig", []group{{names: "assignIPs"}}},
	{"MigrationController", []group{{names: "policyNameMigrator"}}},
	{"NamespaceControllerConfig", []group{{names: "reconcilerPeriod"}}},
	{"PolicyControllerConfig", []group{{names: "reconcilerPeriod"}}},
	{"ServiceAccountControllerConfig", []group{{names: "reconcilerPeriod"}}},
	{"WorkloadEndpointControllerConfig", []group{{names: "reconcilerPeriod"}}},
	{"Node", []group{
		{names: `bgp orchRefs addresses interfaces ipv4VXLANTunnelAddr vxlanTunnelMACAddr ipv6VXLANTunnelAddr
			vxlanTunnelMACAddrV6 wireguard`},
	}},
	{"NodeBGP", []group{{names: "asNumber ipv4Address ipv6Address ipv4IPIPTunnelAddr routeReflectorClusterID"}}},
	{"NodeAddress", []group{{names: "address type"}}},
	{"NodeInterface", []group{{names: "name addresses"}}},
	{"NodeWireguard", []group{{names: "interfaceIPv4Address interfaceIPv6Address"}}},
	{"OrchRef", []group{{names: "nodeName orchestrator"}}},
	{"NodeStatus", []group{{names: "podCIDRs wireguardPublicKey wireguardPublicKeyV6"}}},
	{"HealthTimeoutOverride", []group{{state: NotNeeded, names: "name timeout", text: "see healthTimeoutOverrides"}}},
	{"RouteTableRange", []group{{names: "min max"}}},
	{"RouteTableIDRange", []group{{names: "min max"}}},
	{"ProtoPort", []group{{names: "protocol port net"}}},
	{"BPFConntrackTimeouts", []group{{state: NotNeeded, names: `creationGracePeriod tcpSynSent tcpEstablished
		tcpFinsSeen tcpResetSeen udpTimeout genericTimeout icmpTimeout`, text: "it matters only with bpfEnabled"}}},
}

const (
	logText = "one log: of this level and that of the other configuration the one with more lines counts; a " +
		"--log-level other than info comes first"
	stagedText = "packets are counted for Set and Learn; Delete and Ignore have no effect"
)

// kinds has the kinds that are no objects of Calico's datastore, or that Manx does not read.
var kinds = []group{
	{names: "ClusterNetworkPolicy"},
	{state: NotDone, holds: true, names: "AdminNetworkPolicy BaselineAdminNetworkPolicy",
		text: "Manx enforces none of their rules: write them as ClusterNetworkPolicy (v1alpha2), or as " +
			"GlobalNetworkPolicy"},
	{state: Differently, names: "LiveMigration", text: "the moves of KubeVirt's virtual machines are read from the " +
		"Kubernetes API alone; in etcd OpenStack writes such objects, which is not supported"},
	{state: Differently, names: "DatastoreMigration",
		text: "the leader of the controllers runs the migration where no calico-kube-controllers do, with the rights " +
			"of the chart's datastoreMigration. Conflicts and objects that the newer group refuses are found before " +
			"the lock. The nodes start again with projectcalico.org/v3 when the phase is Converged, and report that"},
	{state: NotNeeded, names: "ExternalNetwork EgressGatewayPolicy", text: "of the commercial edition"},
}

// host has what other programs of a host set, and what this host does not do.
var host = []group{
	{state: NotDone, holds: true, names: "wireguard-without-networking",
		text: "with networking=none this node makes no tunnels, and packets of its pods go in plain"},
	{state: NotDone, holds: true, names: "kube-proxy-ipvs",
		text: "kube-proxy runs in mode IPVS, or left Services' addresses at this interface: its Services take " +
			"another path through the kernel than the rules of policy expect. Set mode: nftables or iptables in the " +
			"configuration of kube-proxy, restart it, and delete the interface if it stays"},
}
