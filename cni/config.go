package cni

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
)

// Config is a network configuration from the container runtime, with Calico's keys.
type Config struct {
	types.PluginConf
	IPAM IPAM `json:"ipam"`

	Nodename             string `json:"nodename"`
	NodenameFile         string `json:"nodename_file"`
	NodenameFileOptional bool   `json:"nodename_file_optional"`
	Hostname             string `json:"hostname"` // an old name of nodename

	DatastoreType    string `json:"datastore_type"`
	EtcdEndpoints    string `json:"etcd_endpoints"`
	EtcdDiscoverySrv string `json:"etcd_discovery_srv"`
	EtcdKeyFile      string `json:"etcd_key_file"`
	EtcdCertFile     string `json:"etcd_cert_file"`
	EtcdCACertFile   string `json:"etcd_ca_cert_file"`
	// Calico's plugin reads these two from the environment only.
	EtcdUsername     string `json:"etcd_username"`
	EtcdPasswordFile string `json:"etcd_password_file"`

	MTU             int    `json:"mtu"`
	RequireMTUFile  bool   `json:"require_mtu_file"`
	NumQueues       int    `json:"num_queues"`
	DeviceType      string `json:"device_type"`
	IncludeDefaults bool   `json:"include_default_routes"`
	IPAMLockFile    string `json:"ipam_lock_file"`

	LogLevel       string `json:"log_level"`
	LogFilePath    string `json:"log_file_path"`
	LogFileMaxSize int    `json:"log_file_max_size"` // megabytes
	LogFileMaxAge  int    `json:"log_file_max_age"`  // days
	LogFileMaxN    int    `json:"log_file_max_count"`

	Policy     Policy     `json:"policy"`
	Kubernetes Kubernetes `json:"kubernetes"`
	// Features are off unless enabled here.
	Features struct {
		IPAddrsNoIPAM bool `json:"ip_addrs_no_ipam"`
		FloatingIPs   bool `json:"floating_ips"`
	} `json:"feature_control"`
	CalicoAPIGroup string  `json:"calico_api_group"`
	QPS            float32 `json:"qps"`
	Burst          int     `json:"burst"`

	ContainerSettings struct {
		AllowIPForwarding bool `json:"allow_ip_forwarding"`
	} `json:"container_settings"`
	// PolicySetupTimeout is in seconds; 0 disables the wait, nil uses the plugin's default.
	PolicySetupTimeout *int   `json:"policy_setup_timeout_seconds"`
	EndpointStatusDir  string `json:"endpoint_status_dir"`
	// RequirePolicyTable makes an ADD wait for manxd's table of nftables. manxd sets it in the configuration that it
	// writes, if it enforces policy. Calico's plugin has no such key.
	RequirePolicyTable bool `json:"require_policy_table"`
	// ManxdSocket is the path of manxd's control socket; the CNI socket is in the same folder. Calico's plugin has no
	// such key.
	ManxdSocket      string   `json:"manxd_socket"`
	ReadinessGates   []string `json:"readiness_gates"`
	DataplaneOptions struct {
		Type string `json:"type"`
	} `json:"dataplane_options"`
}

// Policy selects whether Kubernetes' policies apply to pods, and configures access to the Kubernetes API.
type Policy struct {
	Type        string `json:"type"` // "k8s", or empty for a profile of the network
	APIRoot     string `json:"k8s_api_root"`
	AuthToken   string `json:"k8s_auth_token"`
	Certificate string `json:"k8s_client_certificate"`
	Key         string `json:"k8s_client_key"`
	CA          string `json:"k8s_certificate_authority"`
}

// Kubernetes configures access to the Kubernetes API.
type Kubernetes struct {
	Kubeconfig string `json:"kubeconfig"`
	APIRoot    string `json:"k8s_api_root"`
	NodeName   string `json:"node_name"`
}

// OfKubernetes reports whether pods are read from the Kubernetes API.
func (c *Config) OfKubernetes() bool { return c.Policy.Type == "k8s" }

// IPAM is the section of the IPAM plugin. The two booleans are strings, as in Calico.
type IPAM struct {
	Type       string        `json:"type"`
	AssignIPv4 string        `json:"assign_ipv4"`
	AssignIPv6 string        `json:"assign_ipv6"`
	IPv4Pools  []string      `json:"ipv4_pools"`
	IPv6Pools  []string      `json:"ipv6_pools"`
	Routes     []types.Route `json:"routes"`
}

// Args are the values that Kubernetes and users pass in CNI_ARGS.
type Args struct {
	types.CommonArgs
	IP                net.IP
	K8S_POD_NAME      types.UnmarshallableString //nolint:revive // the name is the key
	K8S_POD_NAMESPACE types.UnmarshallableString //nolint:revive
}

const (
	defaultNodenameFile = "/var/lib/calico/nodename"
	DefaultMTUFile      = "/var/lib/calico/mtu"
	defaultLockFile     = "/var/run/calico/ipam.lock"
	defaultCNIVersion   = "0.2.0" // of a configuration without a version
	defaultSocket       = "/run/manx/manxd.sock"
)

// SocketName is the name of manxd's socket for this protocol, in its run directory.
const SocketName = "cni.sock"

// Socket returns the path of manxd's CNI socket.
func (c *Config) Socket() string { return filepath.Join(filepath.Dir(c.ManxdSocket), SocketName) }

// OwnIPAM reports whether the IPAM plugin is Calico's, which is this program under another name.
func (c *Config) OwnIPAM() bool { return c.IPAM.Type == "calico-ipam" || c.IPAM.Type == "manx-ipam" }

// ParseConfig parses and checks a network configuration; the error has a CNI code.
func ParseConfig(stdin []byte) (*Config, error) {
	c, err := parseConfig(stdin)
	if err != nil {
		return nil, err
	}
	return c, c.validate()
}

// parseConfig parses a network configuration. The server of the plugin's requests checks it.
func parseConfig(stdin []byte) (*Config, error) {
	c := &Config{}
	if err := json.Unmarshal(stdin, c); err != nil {
		return nil, types.NewError(types.ErrDecodingFailure, "the network configuration cannot be read", err.Error())
	}
	c.setDefaults()
	return c, nil
}

func (c *Config) setDefaults() {
	if c.CNIVersion == "" {
		c.CNIVersion = defaultCNIVersion
	}
	if c.NodenameFile == "" {
		c.NodenameFile = defaultNodenameFile
	}
	if c.IPAMLockFile == "" {
		c.IPAMLockFile = defaultLockFile
	}
	if c.ManxdSocket == "" {
		c.ManxdSocket = defaultSocket
	}
}

func (c *Config) validate() error {
	var problems []string
	wrong := func(key string, value any, rule string) {
		problems = append(problems, fmt.Sprintf("%s = %q: %s", key, fmt.Sprint(value), rule))
	}
	if c.IPAM.Type == "" {
		wrong("ipam.type", "", "must name an IPAM plugin, for instance calico-ipam")
	}
	if c.MTU < 0 || c.MTU > 65535 {
		wrong("mtu", c.MTU, "must be 0 (automatic) to 65535")
	}
	if c.NumQueues < 0 || c.NumQueues > 4096 {
		wrong("num_queues", c.NumQueues, "must be 0 to 4096")
	}
	if c.DeviceType != "" && c.DeviceType != "veth" && c.DeviceType != "netkit" {
		wrong("device_type", c.DeviceType, "must be veth or netkit")
	}
	if t := c.PolicySetupTimeout; t != nil && *t < 0 {
		wrong("policy_setup_timeout_seconds", *t, "must not be negative: 0 does not wait")
	}
	if c.DataplaneOptions.Type != "" && c.DataplaneOptions.Type != "linux" {
		wrong("dataplane_options.type", c.DataplaneOptions.Type, "this plugin wires containers itself: leave it out")
	}
	if t := c.DatastoreType; t != "" && t != "etcdv3" && t != "kubernetes" {
		wrong("datastore_type", t, "must be etcdv3 or kubernetes")
	}
	if c.EtcdDiscoverySrv != "" {
		wrong("etcd_discovery_srv", c.EtcdDiscoverySrv, "is not supported: list the servers in etcd_endpoints")
	}
	if len(problems) > 0 {
		return types.NewError(types.ErrInvalidNetworkConfig,
			fmt.Sprintf("network %s is not configured right", c.Name), strings.Join(problems, "; "))
	}
	return nil
}

// ParseArgs parses CNI_ARGS; the error has a CNI code.
func ParseArgs(text string) (Args, error) {
	var a Args
	all := "IgnoreUnknown=1"
	if text != "" {
		all += ";" + text
	}
	if err := types.LoadArgs(all, &a); err != nil {
		return a, types.NewError(types.ErrInvalidEnvironmentVariables,
			fmt.Sprintf("CNI_ARGS = %q cannot be read", text), err.Error())
	}
	return a, nil
}

// Wants returns the families that the IPAM plugin assigns. Only the exact strings change the default.
func (i IPAM) Wants() (v4, v6 bool) {
	return i.AssignIPv4 != "false", i.AssignIPv6 == "true"
}

// NodeName returns the name under which this node is registered. It must equal the agent's, byte for byte.
func (c *Config) NodeName() (string, error) {
	if c.Nodename != "" {
		return c.Nodename, nil
	}
	content, err := os.ReadFile(c.NodenameFile)
	if name := strings.TrimRight(string(content), "\r\n"); err == nil && name != "" {
		return name, nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("nodename_file: %w", err)
	}
	if !c.NodenameFileOptional {
		return "", types.NewError(types.ErrTryAgainLater, "the name of this node is not known yet",
			fmt.Sprintf("%s does not exist or is empty: manxd writes it when it starts (or set nodename in the "+
				"network configuration)", c.NodenameFile))
	}
	if c.Hostname != "" {
		return c.Hostname, nil
	}
	host, err := os.Hostname()
	return strings.ToLower(strings.TrimSpace(host)), err
}

// FindMTU returns the configured MTU, else the MTU that the agent wrote to file. 0 leaves it to the kernel.
func (c *Config) FindMTU(file string) (int, error) {
	if c.MTU != 0 {
		return c.MTU, nil
	}
	content, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) && !c.RequireMTUFile {
		return 0, nil
	}
	if err != nil {
		return 0, types.NewError(types.ErrTryAgainLater, "the MTU of this node is not known yet", err.Error())
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(content)))
	if err != nil || n < 0 || n > 65535 {
		return 0, fmt.Errorf("%s = %q: must be a number from 0 to 65535", file, content)
	}
	return n, nil
}
