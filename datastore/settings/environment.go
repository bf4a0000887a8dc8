package settings

// variables has the variables of calico/node, its CNI installer and its controllers that are no parameter of Felix.
var variables = []group{
	{names: `NODENAME HOSTNAME CALICO_NODENAME_FILE CALICO_K8S_NODE_REF IP IP6 IP_AUTODETECTION_METHOD
		IP6_AUTODETECTION_METHOD AUTODETECT_POLL_INTERVAL AS CALICO_ROUTER_ID DISABLE_NODE_IP_CHECK NO_DEFAULT_POOLS
		CALICO_IPV4POOL_CIDR CALICO_IPV4POOL_BLOCK_SIZE CALICO_IPV4POOL_IPIP CALICO_IPV4POOL_VXLAN
		CALICO_IPV4POOL_NAT_OUTGOING CALICO_IPV4POOL_NODE_SELECTOR CALICO_IPV4POOL_DISABLE_BGP_EXPORT
		CALICO_IPV6POOL_CIDR CALICO_IPV6POOL_BLOCK_SIZE CALICO_IPV6POOL_VXLAN CALICO_IPV6POOL_NAT_OUTGOING
		CALICO_IPV6POOL_NODE_SELECTOR CALICO_IPV6POOL_DISABLE_BGP_EXPORT WAIT_FOR_DATASTORE CLUSTER_TYPE
		CALICO_STARTUP_LOGLEVEL CALICO_ADVERTISE_CLUSTER_IPS NAMESPACE POD_NAMESPACE DATASTORE_TYPE ETCD_ENDPOINTS
		ETCD_USERNAME ETCD_PASSWORD ETCD_CA_CERT_FILE ETCD_CERT_FILE ETCD_KEY_FILE KUBECONFIG K8S_API_ENDPOINT
		K8S_CA_FILE K8S_CERT_FILE K8S_KEY_FILE K8S_INSECURE_SKIP_TLS_VERIFY K8S_CURRENT_CONTEXT K8S_CLIENT_QPS
		K8S_CLIENT_BURST CALICO_API_GROUP USE_POD_CIDR CALICO_DATASTORE_TYPE CALICO_ETCD_ENDPOINTS
		CALICO_ETCD_USERNAME CALICO_ETCD_PASSWORD CALICO_ETCD_CA_CERT_FILE CALICO_ETCD_CERT_FILE CALICO_ETCD_KEY_FILE
		CALICO_KUBECONFIG CALICO_K8S_API_ENDPOINT CALICO_K8S_CA_FILE CALICO_K8S_CERT_FILE CALICO_K8S_KEY_FILE
		CALICO_K8S_INSECURE_SKIP_TLS_VERIFY CALICO_K8S_CURRENT_CONTEXT CALICO_K8S_CLIENT_QPS CALICO_K8S_CLIENT_BURST
		CALICO_USE_POD_CIDR`},
	{names: `CNI_NET_DIR CNI_CONF_NAME CNI_OLD_CONF_NAME CNI_NETWORK_CONFIG CNI_NETWORK_CONFIG_FILE CNI_MTU
		CNI_TOKEN_REFRESH_INTERVAL SKIP_CNI_BINARIES UPDATE_CNI_BINARIES CALICO_MANAGE_CNI CALICO_CNI_SERVICE_ACCOUNT
		LOG_LEVEL LOG_FILE_PATH LOG_FILE_MAX_SIZE LOG_FILE_MAX_AGE LOG_FILE_MAX_COUNT KUBERNETES_NODE_NAME`},
	{names: `ENABLED_CONTROLLERS RECONCILER_PERIOD COMPACTION_PERIOD SYNC_NODE_LABELS AUTO_HOST_ENDPOINTS`},
	{names: "CALICO_NETWORKING_BACKEND CALICO_NETWORKING"},
	{state: Differently, names: "BGP_LOGSEVERITYSCREEN", text: logText},
	{state: NotDone, names: "ETCD_DISCOVERY_SRV CALICO_ETCD_DISCOVERY_SRV",
		text: "name the servers in ETCD_ENDPOINTS"},
	{state: Differently, names: "CALICO_DISABLE_FILE_LOGGING", text: "manxd logs to standard error alone"},
	{state: Differently, names: "CALICO_DISABLE_FELIX", text: "--policy=false has no policy; routes are still made"},
	{state: Differently, names: `HEALTH_ENABLED POLICY_WORKERS NODE_WORKERS PROFILE_WORKERS
		WORKLOAD_ENDPOINT_WORKERS`,
		text: "it is checked, and has no effect: one worker is enough, and the health of the controllers is " +
			"that of manxd"},
	{state: NotNeeded, names: "CALICO_SHUTDOWN_TIMESTAMP_FILE",
		text: "routes and rules stay in the kernel while manxd is away"},
	{state: NotNeeded, names: "K8S_DISABLE_NODE_POLL CALICO_K8S_DISABLE_NODE_POLL", text: "Nodes are watched"},
	{state: NotNeeded, names: "SLEEP", text: "manx-cni install ends when it is done; manxd keeps the files"},
	{state: NotNeeded, names: "TLS_ASSETS_DIR",
		text: "name the files in ETCD_CA_CERT_FILE, ETCD_CERT_FILE and ETCD_KEY_FILE"},
}

// netconf has the keys of the CNI configuration.
var netconf = []group{
	{names: `nodename nodename_file nodename_file_optional hostname datastore_type etcd_endpoints etcd_key_file
		etcd_cert_file etcd_ca_cert_file mtu require_mtu_file num_queues include_default_routes ipam_lock_file log_level
		log_file_path log_file_max_size log_file_max_age log_file_max_count policy.type policy.k8s_api_root
		policy.k8s_auth_token policy.k8s_client_certificate policy.k8s_client_key policy.k8s_certificate_authority
		kubernetes.kubeconfig kubernetes.k8s_api_root kubernetes.node_name ipam.type ipam.assign_ipv4 ipam.assign_ipv6
		ipam.ipv4_pools ipam.ipv6_pools ipam.routes ipam.subnet feature_control.ip_addrs_no_ipam
		feature_control.floating_ips calico_api_group qps burst container_settings.allow_ip_forwarding
		policy_setup_timeout_seconds endpoint_status_dir readiness_gates`},
	{state: Differently, names: "device_type",
		text: "a pod gets a pair of veth, also where netkit is asked for; another type is refused"},
	{state: Differently, names: "dataplane_options.type", text: "linux; another data plane is refused"},
	{state: Differently, names: "etcd_discovery_srv", text: "it is refused: name the servers in etcd_endpoints"},
	{state: Differently, names: "etcd_username etcd_password_file",
		text: "keys of Manx, for what Calico reads from the environment alone"},
	{state: Differently, names: "require_policy_table manxd_socket", text: "keys of Manx"},
	{state: NotNeeded, names: "etcd_scheme etcd_authority args.org.apache.mesos",
		text: "of releases that nobody runs"},
	{state: NotNeeded, names: `mode vxlan_mac_prefix vxlan_vni windows_use_single_network
		windows_disable_default_deny_all_policy windows_loopback_DSR windows_pod_deletion_timestamp_timeout`,
		text: "about Windows"},
}

// annotations has the annotations of pods, namespaces, Services and Nodes.
var annotations = []group{
	{names: `cni.projectcalico.org/ipv4pools cni.projectcalico.org/ipv6pools cni.projectcalico.org/ipFamilies
		cni.projectcalico.org/ipAddrs cni.projectcalico.org/ipAddrsNoIpam cni.projectcalico.org/hwAddr
		cni.projectcalico.org/floatingIPs cni.projectcalico.org/allowedSourcePrefixes cni.projectcalico.org/podIP
		cni.projectcalico.org/podIPs cni.projectcalico.org/containerID kubernetes.io/ingress-bandwidth
		kubernetes.io/egress-bandwidth qos.projectcalico.org/ingressBandwidth qos.projectcalico.org/ingressBurst
		qos.projectcalico.org/ingressPeakrate qos.projectcalico.org/ingressMinburst qos.projectcalico.org/egressBandwidth
		qos.projectcalico.org/egressBurst qos.projectcalico.org/egressPeakrate qos.projectcalico.org/egressMinburst
		qos.projectcalico.org/ingressPacketRate qos.projectcalico.org/ingressPacketBurst
		qos.projectcalico.org/egressPacketRate qos.projectcalico.org/egressPacketBurst
		qos.projectcalico.org/ingressMaxConnections qos.projectcalico.org/egressMaxConnections qos.projectcalico.org/dscp
		vpc.amazonaws.com/pod-ips k8s.v1.cni.cncf.io/network-status projectcalico.org/loadBalancerIPs
		projectcalico.org/ipv4pools projectcalico.org/ipv6pools projectcalico.org/IPv4Address projectcalico.org/IPv6Address
		projectcalico.org/IPv4IPIPTunnelAddr projectcalico.org/ASNumber projectcalico.org/RouteReflectorClusterID
		projectcalico.org/Interfaces projectcalico.org/kube-labels projectcalico.org/IPv4VXLANTunnelAddr
		projectcalico.org/IPv6VXLANTunnelAddr projectcalico.org/VXLANTunnelMACAddr
		projectcalico.org/VXLANTunnelMACAddrV6 projectcalico.org/IPv4WireguardInterfaceAddr
		projectcalico.org/IPv6WireguardInterfaceAddr projectcalico.org/WireguardPublicKey
		projectcalico.org/WireguardPublicKeyV6`},
	{state: NotNeeded, names: "projectcalico.org/natExcludeService projectcalico.org/udpConntrackCleanup",
		text: "it matters only with bpfEnabled"},
}
