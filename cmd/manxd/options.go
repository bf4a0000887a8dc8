package main

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/manxnet/manx/bgp"
	"github.com/manxnet/manx/dataplane/endpointstatus"
	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/policy"
	"github.com/manxnet/manx/datastore/connect"
	"github.com/manxnet/manx/datastore/felixconfig"
	"github.com/manxnet/manx/datastore/kubernetes"
	"github.com/manxnet/manx/proto/server"
)

// options are the settings of the daemon. Each has a flag; most can come from the environment, under calico/node's name
// if it has one.
type options struct {
	nodeName     string
	nodeNameFile string
	k8sNodeRef   string
	kube         kubernetes.Config
	controllers  string

	rewatched        func() // of the datastore: a watch begins again
	datastore        string
	etcdEndpoints    string
	etcdCAFile       string
	etcdCertFile     string
	etcdKeyFile      string
	etcdUsername     string
	etcdPassword     string
	etcdPasswordFile string
	waitForDatastore bool

	dataDir          string
	embeddedListen   string
	embeddedInsecure bool
	embeddedCAFile   string
	embeddedCertFile string
	embeddedKeyFile  string

	runDir                   string
	gobgpListen              string
	gobgpUIDs                string
	httpListen               string
	control                  controlOptions
	cni                      cniOptions
	mtuFile                  string
	procSysNet               string
	besideCalicoNode         bool
	calicoNamespaces         string
	interfacePrefix          string
	endpointStatusPrefix     string
	logLevel                 string
	logFormat                string
	passwordDir              string
	namespace                string
	maxPrefixes              int
	warnPrefixes             int
	refuse                   bgp.RefuseSettings
	birdSocket               string
	bmpCollectors, bmpPolicy string

	ip, ip6              string
	ipMethod, ip6Method  string
	pollInterval         time.Duration
	as                   string
	routerID             string
	clusterIPs           string
	disableConflictCheck bool
	clusterType          string

	policy         bool
	policyCounters bool
	checkOutside   bool
	policyBudget   policy.Budget
	maxFragments   int
	maxConnections int
	reassembly     struct{ Memory, Time int } // MiB, seconds
	toHostAction   string
	flowLog        string
	flowLogRate    int

	flowLogMaxSize, flowLogMaxFiles int

	noDefaultPools, noBGPConfiguration bool
	pool4, pool6                       poolOptions

	settings []server.Setting // the above as texts
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

const (
	envAnnotation = "env"
	logFormatFlag = "log-format"
)

// flags defines all flags on a set, with their environment variables.
func (o *options) flags(fs *pflag.FlagSet) {
	b := binder{fs}
	b.string(&o.nodeName, "node-name", "", "name of this node; empty: the nodename file, then the host name",
		"NODENAME")
	b.string(&o.nodeNameFile, "nodename-file", "/var/lib/calico/nodename",
		"file with the node name, for the CNI plugin", "CALICO_NODENAME_FILE")
	b.string(&o.k8sNodeRef, "k8s-node-ref", "", "name of this node in Kubernetes, if it has one", "CALICO_K8S_NODE_REF")

	b.kubernetes(&o.kube)
	b.controllers(&o.controllers)

	b.string(&o.datastore, "datastore", "", "etcdv3, kubernetes or embedded; empty: etcdv3 if there are endpoints, "+
		"else embedded", "CALICO_DATASTORE_TYPE", "DATASTORE_TYPE")
	b.string(&o.etcdEndpoints, "etcd-endpoints", "", "etcd servers, comma separated URLs", "CALICO_ETCD_ENDPOINTS",
		"ETCD_ENDPOINTS")
	b.string(&o.etcdCAFile, "etcd-ca-cert-file", "", "CA that signs the etcd servers' certificates",
		"CALICO_ETCD_CA_CERT_FILE", "ETCD_CA_CERT_FILE")
	b.string(&o.etcdCertFile, "etcd-cert-file", "", "client certificate for etcd", "CALICO_ETCD_CERT_FILE",
		"ETCD_CERT_FILE")
	b.string(&o.etcdKeyFile, "etcd-key-file", "", "key of the client certificate", "CALICO_ETCD_KEY_FILE",
		"ETCD_KEY_FILE")
	b.string(&o.etcdUsername, "etcd-username", "", "user for etcd", "CALICO_ETCD_USERNAME", "ETCD_USERNAME")
	b.string(&o.etcdPassword, "etcd-password", "",
		"password for etcd; everybody on this host sees it in the output of ps: use --etcd-password-file instead",
		"CALICO_ETCD_PASSWORD", "ETCD_PASSWORD")
	b.string(&o.etcdPasswordFile, "etcd-password-file", "", "file that holds the password for etcd",
		"CALICO_ETCD_PASSWORD_FILE", "ETCD_PASSWORD_FILE")
	b.bool(&o.waitForDatastore, "wait-for-datastore", false, "at start, wait for the datastore instead of "+
		"ending with an error", "WAIT_FOR_DATASTORE")

	b.string(&o.dataDir, "data-dir", "/var/lib/manx", "folder of the embedded datastore", "MANX_DATA_DIR")
	b.string(&o.embeddedListen, "embedded-listen", "",
		"ADDRESS:PORT at which the embedded datastore serves other hosts, with certificates that 'manxd "+
			"client-certificate' makes; empty: a unix socket in the data directory alone", "MANX_EMBEDDED_LISTEN")
	b.bool(&o.embeddedInsecure, "embedded-insecure", false,
		"let everybody who reaches --embedded-listen read and change the cluster, without a certificate",
		"MANX_EMBEDDED_INSECURE")
	b.string(&o.embeddedCAFile, "embedded-ca-file", "",
		"CA of the clients' certificates, in place of the one in the data directory", "MANX_EMBEDDED_CA_FILE")
	b.string(&o.embeddedCertFile, "embedded-cert-file", "",
		"server certificate of the embedded datastore, in place of a generated one", "MANX_EMBEDDED_CERT_FILE")
	b.string(&o.embeddedKeyFile, "embedded-key-file", "", "key of --embedded-cert-file", "MANX_EMBEDDED_KEY_FILE")

	b.string(&o.runDir, "run-dir", "/run/manx", "folder of the control sockets", "MANX_RUN_DIR")
	b.string(&o.gobgpListen, gobgpFlag, "127.0.0.1:50051", "ADDRESS:PORT for the stock gobgp command line (version "+
		"3); empty: off", "MANX_GOBGP_LISTEN")
	b.string(&o.gobgpUIDs, gobgpUIDsFlag, "", "user IDs, comma separated, that --gobgp-listen serves "+
		"in addition to root", "MANX_GOBGP_ALLOW_UIDS")
	b.string(&o.httpListen, httpFlag, "127.0.0.1:9099", "ADDRESS:PORT of health and metrics; empty: off",
		"MANX_HTTP_LISTEN")
	b.control(&o.control)
	b.cni(&o.cni)
	b.string(&o.mtuFile, "mtu-file", "/var/lib/calico/mtu", "file with the MTU of pods, for the CNI plugin",
		"MANX_MTU_FILE")
	b.string(&o.procSysNet, procSysNetFlag, kernel.DefaultProcSysNet,
		"folder of the kernel's network settings; in a container where it is read-only: the mounted folder of the host",
		"MANX_PROC_SYS_NET")
	b.bool(&o.besideCalicoNode, "beside-calico-node", false, "program this node while calico-node is active on "+
		"it; by default manxd waits until it has ended", "MANX_BESIDE_CALICO_NODE")
	b.string(&o.calicoNamespaces, "calico-namespaces", "", "further namespaces in which pods of calico-node "+
		"count, comma separated, beside kube-system, calico-system and that of manxd; tenants must not make pods there",
		"MANX_CALICO_NAMESPACES")
	b.string(&o.endpointStatusPrefix, "endpoint-status-path-prefix", "", "folder; manxd writes to its "+
		"endpoint-status, for the CNI plugin, which workloads have policy and routes; none: off; empty: "+
		"endpointStatusPathPrefix of FelixConfiguration, else "+endpointstatus.DefaultPathPrefix,
		"FELIX_ENDPOINTSTATUSPATHPREFIX")
	b.string(&o.interfacePrefix, "interface-prefix", "",
		"prefixes of the names of workloads' interfaces, comma separated; empty: interfacePrefix of "+
			"FelixConfiguration, else "+felixconfig.DefaultInterfacePrefix, "FELIX_INTERFACEPREFIX")
	b.string(&o.logLevel, "log-level", "info", "debug, info, warn or error", "MANX_LOG_LEVEL",
		"CALICO_STARTUP_LOGLEVEL")
	b.string(&o.logFormat, logFormatFlag, "", "json or text; empty: text on a terminal, else json", "MANX_LOG_FORMAT")
	b.string(&o.passwordDir, "bgp-password-dir", "", "folder of BGP passwords: DIR/SECRET/KEY, as Kubernetes "+
		"mounts secrets", "MANX_BGP_PASSWORD_DIR")

	b.string(&o.namespace, "namespace", "", "namespace of the Secrets with BGP passwords, used with a "+
		"Kubernetes API and without --bgp-password-dir; empty: that of this pod, else kube-system", "NAMESPACE",
		"POD_NAMESPACE")

	b.int(&o.maxPrefixes, "bgp-max-prefixes", 500_000, "limit of prefixes of one BGP peer; above it the session "+
		"is shut down for five minutes. A BGPPeer's annotation manx.io/max-prefixes overrides it",
		"MANX_BGP_MAX_PREFIXES")
	b.int(&o.warnPrefixes, "bgp-warn-prefixes", 50_000, "prefixes of one BGP peer above which its status "+
		"shows a warning", "MANX_BGP_WARN_PREFIXES")

	b.bool(&o.refuse.Default, "bgp-refuse-default-route", false,
		"refuse default routes from BGP peers. BGPConfiguration's annotation manx.io/refuse-default-route overrides it",
		"MANX_BGP_REFUSE_DEFAULT_ROUTE")
	b.bool(&o.refuse.Connected, "bgp-refuse-connected-routes", false,
		"refuse routes of BGP peers inside subnets that this host is on; annotation manx.io/refuse-connected-routes",
		"MANX_BGP_REFUSE_CONNECTED_ROUTES")
	b.bool(&o.refuse.Pools, "bgp-refuse-pool-routes", false,
		"refuse routes of external BGP peers inside IP pools, except whole blocks of nodes; annotation "+
			"manx.io/refuse-pool-routes", "MANX_BGP_REFUSE_POOL_ROUTES")
	b.int(&o.refuse.Longest[0], "bgp-max-prefix-length-v4", 0,
		"refuse longer IPv4 prefixes from BGP peers; 0: any length; annotation manx.io/max-prefix-length-v4",
		"MANX_BGP_MAX_PREFIX_LENGTH_V4")
	b.int(&o.refuse.Longest[1], "bgp-max-prefix-length-v6", 0,
		"refuse longer IPv6 prefixes from BGP peers; 0: any length; annotation manx.io/max-prefix-length-v6",
		"MANX_BGP_MAX_PREFIX_LENGTH_V6")

	b.string(&o.birdSocket, "bird-socket", "", "path of a socket that answers BIRD's show commands, such as "+
		"/var/run/calico/bird.ctl (IPv6: bird6.ctl beside it); empty: off", "MANX_BIRD_SOCKET")

	b.string(&o.bmpCollectors, "bmp-collector", "", "BMP collectors (RFC 7854) for sessions and routes: "+
		"ADDRESS:PORT, comma separated", "MANX_BMP_COLLECTOR")
	b.string(&o.bmpPolicy, "bmp-policy", "pre-policy", "routes for BMP collectors: pre-policy (as received), "+
		"post-policy (as accepted), local-rib (as chosen, RFC 9069) or all", "MANX_BMP_POLICY")

	b.string(&o.ip, "ip", "", "IPv4 address of this node, autodetect, or none; empty: keep the Node's, else autodetect",
		"IP")
	b.string(&o.ip6, "ip6", "", "IPv6 address of this node, autodetect, or none; empty: keep the Node's", "IP6")
	b.string(&o.ipMethod, "ip-autodetection-method", "first-found",
		"first-found, interface=RE,.. skip-interface=RE,.. cidr=C,.. can-reach=DEST or kubernetes-internal-ip",
		"IP_AUTODETECTION_METHOD")
	b.string(&o.ip6Method, "ip6-autodetection-method", "first-found", "the same for IPv6", "IP6_AUTODETECTION_METHOD")
	b.duration(&o.pollInterval, "autodetect-poll-interval", time.Minute,
		"how often the address is detected again", "AUTODETECT_POLL_INTERVAL")
	b.string(&o.as, "as", "", "AS number of this node; empty: keep the Node's, else the cluster's", "AS")
	b.string(&o.routerID, "router-id", "", "BGP router ID: an IPv4 address, or hash; empty: the node's IPv4 address",
		"CALICO_ROUTER_ID")
	b.string(&o.clusterIPs, clusterIPsFlag, "", "cluster IPs of services to advertise: prefixes, comma separated; "+
		"empty: serviceClusterIPs of BGPConfiguration", "CALICO_ADVERTISE_CLUSTER_IPS")
	b.bool(&o.disableConflictCheck, "disable-node-ip-check", false,
		"do not check whether another node has this node's address", "DISABLE_NODE_IP_CHECK")
	b.string(&o.clusterType, "cluster-type", "", "added to the cluster's type in ClusterInformation, comma separated",
		"CLUSTER_TYPE")

	b.bool(&o.policy, "policy", true, "enforce policy: keep the table inet manx of nftables; with false all traffic "+
		"of workloads passes, and natOutgoing does nothing", "MANX_POLICY")
	b.bool(&o.policyCounters, "policy-counters", false, "count packets and bytes of every rule of every policy, not "+
		"only of staged ones; metrics then name the policies", "MANX_POLICY_COUNTERS")
	b.bool(&o.checkOutside, "check-outside-sources", true, "drop packets that come from outside with the address of "+
		"a workload of this node, or with IPv6 of the node itself; false for load balancers and switches that send "+
		"such packets back", "MANX_CHECK_OUTSIDE_SOURCES")
	budget := policy.DefaultBudget
	b.int(&o.policyBudget.Rules, "policy-max-rules", budget.Rules, "how many policies and rules one namespace may "+
		"have in force on this node; further policies drop all packets in their directions; 0: any",
		"MANX_POLICY_MAX_RULES")
	b.int(&o.policyBudget.Sets, "policy-max-sets", budget.Sets, "the same for different selectors, named ports and "+
		"services in these rules", "MANX_POLICY_MAX_SETS")
	b.int(&o.policyBudget.Elements, "policy-max-elements", budget.Elements, "the same for the members of these, and "+
		"networks and ports in these rules", "MANX_POLICY_MAX_ELEMENTS")
	b.int(&o.maxConnections, "workload-max-connections", 0, "connections that one workload may begin, and as many "+
		"that it may answer, in the kernel's table while that is half full; with more it gets no new ones of that "+
		"direction; 0: a quarter of the table; -1: any",
		"MANX_WORKLOAD_MAX_CONNECTIONS")
	b.int(&o.maxFragments, "workload-max-fragments", 2000, "IP fragments a second, and at once, that one workload may "+
		"send; more are dropped; 0: any", "MANX_WORKLOAD_MAX_FRAGMENTS")
	b.int(&o.reassembly.Memory, "reassembly-memory", 64, "MiB for each IP family that this host gets, at least, for "+
		"packets of which not all fragments have come; 0: as the kernel is set", "MANX_REASSEMBLY_MEMORY")
	b.int(&o.reassembly.Time, "reassembly-time", 2, "seconds that fragments wait for the rest of their packet, at "+
		"most; 0: as the kernel is set", "MANX_REASSEMBLY_TIME")
	b.string(&o.flowLog, "flow-log", "", "record packets that policy drops, and matches of its Log rules, with the "+
		"rule: lines of JSON to this file, - for standard output, or stream for the control API (manxctl drops) only; "+
		"empty: off", "MANX_FLOW_LOG")
	b.int(&o.flowLogRate, "flow-log-rate", 100, "flows a second that are recorded at most; the others are counted",
		"MANX_FLOW_LOG_RATE")
	b.int(&o.flowLogMaxSize, "flow-log-max-size", 100,
		"size in MiB from which the flow log begins a new file; 0: never", "MANX_FLOW_LOG_MAX_SIZE")
	b.int(&o.flowLogMaxFiles, "flow-log-max-files", 10, "earlier files of the flow log that are kept; 0: all",
		"MANX_FLOW_LOG_MAX_FILES")
	b.string(&o.toHostAction, "endpoint-to-host-action", "", "action for traffic from workloads to this host "+
		"that their policies allow: Drop, Accept or Return; empty: defaultEndpointToHostAction of "+
		"FelixConfiguration, else Drop", "FELIX_DEFAULTENDPOINTTOHOSTACTION")

	b.bool(&o.noDefaultPools, "no-default-pools", false, "do not create a pool when there is none", "NO_DEFAULT_POOLS")
	b.bool(&o.noBGPConfiguration, "no-default-bgp-configuration", false, "do not create the BGPConfiguration default "+
		"when there is none", "MANX_NO_DEFAULT_BGP_CONFIGURATION")
	b.pool(&o.pool4, "4", 26)
	b.pool(&o.pool6, "6", 122)
}

func (b binder) pool(p *poolOptions, family string, blockSize int) {
	flag, env := "ipv"+family+"pool-", "CALICO_IPV"+family+"POOL_"
	of := " of the default IPv" + family + " pool"
	b.string(&p.cidr, flag+"cidr", "", "prefix"+of+"; none: no pool", env+"CIDR")
	b.int(&p.blockSize, flag+"block-size", blockSize, "block size"+of, env+"BLOCK_SIZE")
	b.string(&p.vxlan, flag+"vxlan", "Never", "VXLAN mode"+of, env+"VXLAN")
	b.string(&p.natOutgoing, flag+"nat-outgoing", "", "natOutgoing"+of, env+"NAT_OUTGOING")
	b.string(&p.nodeSelector, flag+"node-selector", "", "node selector"+of, env+"NODE_SELECTOR")
	b.string(&p.disableBGPExport, flag+"disable-bgp-export", "", "disableBGPExport"+of, env+"DISABLE_BGP_EXPORT")
	if family == "4" {
		b.string(&p.ipip, flag+"ipip", "Never", "IPIP mode"+of+": Never, Always or CrossSubnet", env+"IPIP")
	}
}

// binder defines flags that remember their environment variables.
type binder struct{ fs *pflag.FlagSet }

func (b binder) string(p *string, name, value, usage string, envs ...string) {
	b.fs.StringVar(p, name, value, usage)
	b.env(name, envs)
}

func (b binder) bool(p *bool, name string, value bool, usage string, envs ...string) {
	b.fs.BoolVar(p, name, value, usage)
	b.env(name, envs)
}

func (b binder) int(p *int, name string, value int, usage string, envs ...string) {
	b.fs.IntVar(p, name, value, usage)
	b.env(name, envs)
}

func (b binder) duration(p *time.Duration, name string, value time.Duration, usage string, envs ...string) {
	b.fs.DurationVar(p, name, value, usage)
	b.env(name, envs)
}

func (b binder) env(name string, envs []string) {
	f := b.fs.Lookup(name)
	f.Usage += " [" + strings.Join(envs, ", ") + "]"
	f.Annotations = map[string][]string{envAnnotation: envs}
}

// fromEnvironment sets every flag that was not given from the first of its variables that is set and not empty. It
// returns the used variable of each flag.
func fromEnvironment(fs *pflag.FlagSet, getenv func(string) string) (map[string]string, error) {
	used := map[string]string{}
	var errs []error
	fs.VisitAll(func(f *pflag.Flag) {
		if f.Changed {
			return
		}
		for _, env := range f.Annotations[envAnnotation] {
			value := getenv(env)
			if value == "" {
				continue
			}
			if err := f.Value.Set(value); err != nil {
				errs = append(errs, fmt.Errorf("environment variable %s = %q: %w", env, value, err))
			}
			used[f.Name] = env
			return
		}
	})
	return used, errors.Join(errs...)
}

// check refuses invalid combinations before the start.
func (o *options) check() error {
	if o.datastore == "" {
		o.datastore = "embedded"
		if o.etcdEndpoints != "" {
			o.datastore = "etcdv3"
		}
	}
	switch o.datastore {
	case "embedded":
		if o.etcdEndpoints != "" {
			return errors.New("--etcd-endpoints does not go with --datastore=embedded: either is enough")
		}
	case "etcdv3":
		if o.etcdEndpoints == "" {
			return errors.New("--datastore=etcdv3 needs --etcd-endpoints (or ETCD_ENDPOINTS)")
		}
	case connect.Kubernetes:
		o.kube = o.kube.OfUser()
	default:
		return fmt.Errorf("--datastore=%s: want etcdv3, kubernetes or embedded", o.datastore)
	}
	if err := o.checkPolicy(); err != nil {
		return err
	}
	if o.logFormat != "" && o.logFormat != "json" && o.logFormat != "text" {
		return fmt.Errorf("--log-format=%s: want json or text", o.logFormat)
	}
	if err := o.checkRouteLimits(); err != nil {
		return err
	}
	config := o.nodeConfig()
	_, bmpErr := o.bmp("")
	return errors.Join(config.Check(), checkPrefixes(clusterIPsFlag, o.clusterIPs), bmpErr,
		checkListen(httpFlag, o.httpListen), o.checkSysctls(),
		o.checkGobgp(), o.control.check(), o.checkControllers())
}

// checkRouteLimits refuses limits that no table could meet.
func (o *options) checkRouteLimits() error {
	for flag, n := range map[string]int{"bgp-max-prefixes": o.maxPrefixes, "bgp-warn-prefixes": o.warnPrefixes} {
		if n < 1 {
			return fmt.Errorf("--%s=%d: want 1 or more", flag, n)
		}
	}
	for i, flag := range []string{"bgp-max-prefix-length-v4", "bgp-max-prefix-length-v6"} {
		if n, most := o.refuse.Longest[i], []int{32, 128}[i]; n < 0 || n > most {
			return fmt.Errorf("--%s=%d: want 1 to %d, or 0 for any length", flag, n, most)
		}
	}
	return nil
}

const procSysNetFlag = "proc-sys-net"

// checkSysctls refuses a folder without network settings.
func (o *options) checkSysctls() error {
	if err := kernel.CheckProcSysNet(o.procSysNet); err != nil {
		return fmt.Errorf("--%s=%s: %w", procSysNetFlag, o.procSysNet, err)
	}
	return nil
}

const clusterIPsFlag = "advertise-cluster-ips"

// checkPrefixes refuses a malformed list of prefixes.
func checkPrefixes(flag, list string) error {
	if list == "" {
		return nil
	}
	for text := range strings.SplitSeq(list, ",") {
		if _, err := netip.ParsePrefix(strings.TrimSpace(text)); err != nil {
			return fmt.Errorf("--%s=%s: %q is no prefix: want ADDRESS/LENGTH, several with commas", flag, list, text)
		}
	}
	return nil
}

// endpointStatusDir returns the folder of the endpoint status files for the CNI plugin, given endpointStatusPathPrefix
// of FelixConfiguration; empty for none.
func (o *options) endpointStatusDir(felix string) string {
	prefix := cmp.Or(o.endpointStatusPrefix, felix, endpointstatus.DefaultPathPrefix)
	if strings.EqualFold(prefix, "none") {
		return ""
	}
	return filepath.Join(prefix, endpointstatus.FolderName)
}
