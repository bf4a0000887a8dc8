package settings

// felix has the fields of FelixConfiguration, and the parameters of Felix that have no field.
var felix = []group{
	{state: Done, names: `nodeSelector interfacePrefix defaultEndpointToHostAction iptablesFilterDenyAction logPrefix
		logActionRateLimit logActionRateLimitBurst ipipEnabled ipipMTU vxlanEnabled vxlanMTU vxlanMTUV6 vxlanPort
		vxlanVNI allowVXLANPacketsFromWorkloads
		allowIPIPPacketsFromWorkloads disableConntrackInvalidCheck natPortRange natOutgoingAddress
		natOutgoingExclusions iptablesNATOutgoingInterfaceFilter endpointStatusPathPrefix failsafeInboundHostPorts
		failsafeOutboundHostPorts ipForwarding mtuIfacePattern externalNodesList ipv4NormalRoutePriority
		ipv6NormalRoutePriority ipv4ElevatedRoutePriority ipv6ElevatedRoutePriority
		liveMigrationRouteConvergenceTime serviceLoopPrevention
		workloadSourceSpoofing floatingIPs nftablesFilterDenyAction prometheusMetricsEnabled prometheusMetricsHost
		prometheusMetricsPort prometheusGoMetricsEnabled prometheusProcessMetricsEnabled prometheusMetricsCAFile
		prometheusMetricsCertFile prometheusMetricsKeyFile prometheusMetricsClientAuth healthHost healthPort
		deviceRouteSourceAddress deviceRouteSourceAddressIPv6 removeExternalRoutes interfaceExclude`},

	// What many clusters use.
	{state: NotDone, holds: true, names: "bpfEnabled=false",
		text: "Manx has no eBPF data plane: where it takes the place of kube-proxy, pods of a Manx node reach no " +
			"Service"},
	{names: `wireguardEnabled wireguardEnabledV6 wireguardListeningPort wireguardListeningPortV6
		wireguardRoutingRulePriority wireguardMTU wireguardMTUV6 wireguardKeepAlive routeTableRanges routeTableRange
		wireguardHostEncryptionEnabled wireguardThreadingEnabled`},
	{state: NotDone, names: "wireguardInterfaceName=wireguard.cali wireguardInterfaceNameV6=wg-v6.cali",
		text: "the devices are always named wireguard.cali and wg-v6.cali"},
	{state: Differently, names: "logSeverityScreen", text: logText},
	{state: Planned, names: "flowLogsGoldmaneServer flowLogsLocalReporter",
		text: "no flows are sent to Goldmane; --flow-log and manxctl drops have the packets that policy drops or " +
			"logs"},
	{state: Differently, names: "awsSrcDstCheck",
		text: "with the credentials of the instance's role alone; not in the isolated partitions of AWS"},
	{state: NotDone, names: "policySyncPathPrefix",
		text: "there is no socket for dikastes: rules on HTTP are enforced for their addresses and ports alone"},
	{state: NotDone, names: "nftablesFlowTableOffload nftablesFlowTableDataIfacePattern",
		text: "flows are not offloaded: packets of a flow table would pass the source check, rates, DSCP and other " +
			"programs' rules unseen (decision 0025)"},
	{state: NotDone, names: "istioAmbientMode istioDSCPMark",
		text: "the traffic of Istio's ambient mesh has no rules of its own"},
	{names: "debugHost debugPort"},
	{state: NotDone, names: "debugMemoryProfilePath",
		text: "manxd writes no profile to a file that the datastore names: take it from debugPort"},
	{state: NotDone, names: "metadataAddr metadataPort openstackRegion endpointReportingEnabled",
		text: "OpenStack is not supported: no access to its metadata server, no status of endpoints for it"},
	{state: NotDone, names: "useInternalDataplaneDriver dataplaneDriver",
		text: "Manx programs the kernel itself, without an external driver"},
	{state: NotDone, names: "EtcdAddr EtcdScheme EtcdKeyFile EtcdCertFile EtcdCaFile EtcdEndpoints",
		text: "the datastore is that of DATASTORE_TYPE and ETCD_*, as of calico/node"},

	{state: Differently, names: "DatastoreType", text: "the datastore is that of DATASTORE_TYPE"},
	{state: Differently, names: "FelixHostname", text: "the name of the node is that of NODENAME"},
	{state: Differently, names: "ipv6Support",
		text: "IPv6 is in use where the kernel has it; FELIX_IPV6SUPPORT=false, also in felix.cfg, keeps the " +
			"default IPv6 pool away"},
	{state: Differently, names: "programClusterRoutes",
		text: "one process makes all routes: those of pools with IPIP always have protocol 80"},
	{state: Differently, names: "deviceRouteProtocol",
		text: "routes to workloads have this protocol, and 80 if it is not set; all others have 12, or 80 with IPIP"},
	{state: Differently, names: "routeSyncDisabled",
		text: "routes to workloads are left to other programs; those of BGP and of blocks are made all the same"},
	{state: Differently, names: "localSubnetL2Reachability",
		text: "the kernel answers ARP and ND for workloads; nobody does for addresses of LoadBalancer services"},
	{state: Differently, names: "iptablesMarkMask nftablesMarkMask",
		text: "the rules use the two lowest bits of nftablesMarkMask, else of iptablesMarkMask, else 0x10000 and " +
			"0x20000; Felix uses more of them"},
	{state: Differently, names: "healthEnabled",
		text: "health is always served at --http-listen, 127.0.0.1:9099 if not set; healthEnabled has it served at " +
			"healthHost and healthPort, too"},
	{state: Differently, names: "logFilePath logSeverityFile logSeveritySys",
		text: "manxd logs to standard error alone"},
	{state: Differently, names: "featureDetectOverride",
		text: "ChecksumOffloadBroken decides about the VXLAN devices; Manx tries itself whether the kernel has the " +
			"other features"},
	{state: Differently, names: "requireMTUFile", text: "the key require_mtu_file of the CNI configuration decides"},

	{state: NotNeeded, text: "it matters only with flowLogsGoldmaneServer or flowLogsLocalReporter",
		names: `flowLogsPolicyEvaluationMode flowLogsFlushInterval flowLogsCollectorDebugTrace`},
	{state: NotNeeded, text: "Manx writes no status of Felix into etcd, which OpenStack reads",
		names: `reportingInterval reportingTTL endpointReportingDelay`},
	{state: NotNeeded, text: "Manx announces nothing for localSubnetL2Reachability: the kernel answers who asks",
		names: `localSubnetL2ReachabilityRefreshInterval`},
	{state: NotNeeded, text: "the metrics of each peer are among those of manxd, at --http-listen, while it has peers",
		names: "prometheusWireGuardMetricsEnabled"},
	{state: NotNeeded,
		text: "Felix's inside: Manx repairs changes as the kernel reports them, and checks all at times",
		names: `dataplaneWatchdogTimeout routeRefreshInterval interfaceRefreshInterval iptablesRefreshInterval
		iptablesPostWriteCheckInterval iptablesLockProbeInterval iptablesLockFilePath iptablesLockTimeout
		ipsetsRefreshInterval nftablesRefreshInterval xdpRefreshInterval netlinkTimeout maxIpsetSize
		featureGates healthTimeoutOverrides logDebugFilenameRegex debugDisableLogDropping
		debugSimulateCalcGraphHangAfter debugSimulateDataplaneHangAfter debugSimulateDataplaneApplyDelay
		DebugCPUProfilePath DebugPanicAfter DebugSimulateDataRace DebugBPFCgroupV2 cgroupV2Path routeSource Variant
		IgnoreLooseRPF`},
	{state: NotNeeded, text: "manxd bounds its memory and its threads itself", names: `goGCThreshold goMemoryLimitMB
		goMaxProcs`},
	{state: NotNeeded,
		text: "Manx has one table of nftables of its own, and an accept there overrides no other table",
		names: `iptablesBackend nftablesMode chainInsertMode iptablesFilterAllowAction iptablesMangleAllowAction
		nftablesFilterAllowAction nftablesMangleAllowAction kubeNodePortRanges`},
	{state: NotNeeded, text: "an acceleration of Felix's rules", names: `sidecarAccelerationEnabled xdpEnabled
		genericXDPEnabled`},
	{state: NotNeeded, text: "Manx reports its use to nobody", names: `usageReportingEnabled usageReportingInitialDelay
		usageReportingInterval`},
	{state: NotNeeded, text: "about Windows", names: `windowsManageFirewallRules`},
	{state: NotNeeded, text: "each node reads the datastore itself", names: `TyphaAddr TyphaK8sServiceName
		TyphaK8sNamespace TyphaReadTimeout TyphaWriteTimeout TyphaKeyFile TyphaCertFile TyphaCAFile TyphaCN TyphaURISAN`},
	{state: NotNeeded, text: "Calico's programs set it by themselves, from the datastore", names: `IPv4VXLANTunnelAddr
		IPv6VXLANTunnelAddr VXLANTunnelMACAddr VXLANTunnelMACAddrV6 IpInIpTunnelAddr ClusterGUID ClusterType
		CalicoVersion`},
	{state: NotNeeded, text: "it matters only with bpfEnabled", names: `bpfOverlayHostSourceIP bpfDisableUnprivileged
		bpfJITHardening bpfLogLevel bpfConntrackLogLevel bpfConntrackMode bpfConntrackTimeouts bpfIPFragTimeout
		bpfLogFilters bpfCTLBLogFilter bpfDataIfacePattern bpfL3IfacePattern bpfConnectTimeLoadBalancingEnabled
		bpfConnectTimeLoadBalancing bpfHostNetworkedNATWithoutCTLB bpfExternalServiceMode bpfDSROptoutCIDRs
		bpfExtToServiceConnmark bpfKubeProxyIptablesCleanupEnabled bpfKubeProxyMinSyncPeriod bpfKubeProxyHealthzPort
		bpfKubeProxyEndpointSlicesEnabled bpfPSNATPorts bpfMapSizeNATFrontend bpfMapSizeNATBackend
		bpfMapSizeNATAffinity bpfMapSizeRoute bpfMapSizeConntrack bpfMapSizePerCpuConntrack bpfMapSizeConntrackScaling
		bpfMapSizeConntrackCleanupQueue bpfMapSizeIPSets bpfMapSizeIfState bpfHostConntrackBypass
		bpfIPFragmentReassemblyEnabled bpfEnforceRPF bpfPolicyDebugEnabled bpfForceTrackPacketsFromIfaces
		bpfDisableGROForIfaces bpfExcludeCIDRsFromNAT bpfExportBufferSizeMB bpfRedirectToPeer bpfAttachType
		bpfProfiling bpfMaglevMaxEndpointsPerService bpfMaglevMaxServices`},
}
