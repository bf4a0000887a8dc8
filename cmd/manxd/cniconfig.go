package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"k8s.io/client-go/rest"

	"github.com/manxnet/manx/cni/install"
	"github.com/manxnet/manx/cni/kubeapi"
	"github.com/manxnet/manx/daemon/deps"
	"github.com/manxnet/manx/daemon/envflag"
	"github.com/manxnet/manx/daemon/part"
	"github.com/manxnet/manx/datastore/connect"
	"github.com/manxnet/manx/proto/server"
)

// cniOptions configure the content and the place of the CNI plugins' configuration.
type cniOptions struct {
	confDir, netDir       string
	name, oldName         string
	template, templateAt  string
	mtu                   int
	logLevel, logFile     string
	manage                bool
	account, podNamespace string
	refresh               time.Duration
}

const cniConfFlag = "cni-conf-dir"

// Flags implements group.
func (o *cniOptions) Flags(s envflag.Set) {
	s.String(&o.confDir, cniConfFlag, "",
		"folder where the network configuration of the container runtime is written, "+
			"with a kubeconfig for the plugins, once this node is ready; empty: nowhere", "MANX_CNI_CONF_DIR")
	s.String(&o.netDir, "cni-net-dir", "/etc/cni/net.d", "path of --cni-conf-dir as the plugins see it", "CNI_NET_DIR")
	s.String(&o.name, "cni-conf-name", "10-calico.conflist", "name of the network configuration", "CNI_CONF_NAME")
	s.String(&o.oldName, "cni-old-conf-name", "", "an earlier network configuration to remove", "CNI_OLD_CONF_NAME")
	s.String(&o.template, "cni-network-config", "", "the network configuration, with Calico's tokens such as "+
		"__CNI_MTU__; "+
		"empty: one with Calico's IPAM, policy of Kubernetes and port mappings", "CNI_NETWORK_CONFIG")
	s.String(&o.templateAt, "cni-network-config-file", "", "file with the network configuration",
		"CNI_NETWORK_CONFIG_FILE")
	s.Int(&o.mtu, "cni-mtu", 0, "value of __CNI_MTU__; 0: detected by this node", "CNI_MTU")
	s.String(&o.logLevel, "cni-log-level", "info", "value of __LOG_LEVEL__", "LOG_LEVEL")
	s.String(&o.logFile, "cni-log-file", "/var/log/calico/cni/cni.log", "value of __LOG_FILE_PATH__", "LOG_FILE_PATH")
	s.Bool(&o.manage, "cni-manage", true, "write the files of the --cni flags", "CALICO_MANAGE_CNI")
	s.String(&o.account, "cni-service-account", "manx-cni-plugin", "service account of the plugins' token",
		"CALICO_CNI_SERVICE_ACCOUNT")
	s.String(&o.podNamespace, "cni-service-account-namespace", "", "namespace of that service account; empty: "+
		"this pod's, else kube-system",
		"POD_NAMESPACE")
	s.Duration(&o.refresh, "cni-token-refresh-interval", 0, "how often the token is refreshed; 0: after a "+
		"quarter of the "+
		"time that it has left", "CNI_TOKEN_REFRESH_INTERVAL")
}

// Check implements group.
func (o *cniOptions) Check() error { return nil }

// cniConfig is the part that writes the configuration of the plugins. It is no readiness check: the runtime starts pods
// as soon as the configuration exists, and it stays when manxd ends, for the next manxd.
type cniConfig struct {
	install.Keeper
	unbound atomic.Bool // the token in use is not bound to the Node
}

func (c *cniConfig) Name() string { return "cni-config" }

// Explain implements part.Explainer.
func (c *cniConfig) Explain(err error) string {
	return fmt.Sprintf("the configuration of the CNI plugins in %s is not written: %v", c.Dir, err)
}

// Notices report a token that is good on any host.
func (c *cniConfig) Notices() []server.Notice {
	if !c.unbound.Load() {
		return nil
	}
	text := fmt.Sprintf("the Kubernetes API binds no token to a Node (before version 1.31): whoever takes it can use "+
		"it anywhere, for %v", unboundLifetime)
	return []server.Notice{{Topic: "daemon", Subject: "token of the CNI plugin", Text: text}}
}

// newCNIConfig returns nil if another program writes it.
func newCNIConfig(
	d deps.Deps, o cniOptions, store datastoreOptions, families install.Families, withPolicy bool,
) (part.Part, error) {
	if o.confDir == "" || !o.manage {
		return nil, nil
	}
	template := o.template
	if o.templateAt != "" {
		text, err := os.ReadFile(o.templateAt)
		if err != nil {
			return nil, fmt.Errorf("--cni-network-config-file: %w", err)
		}
		template = string(text)
	}
	if template == "" {
		template = install.DefaultTemplate(d.Kube != nil, families)
	}
	content, err := install.Conflist(template, o.values(d, store))
	if err == nil {
		content, err = install.RequirePolicy(content, withPolicy)
	}
	if err != nil {
		return nil, fmt.Errorf("--cni-network-config: %w", err)
	}
	c := &cniConfig{Keeper: install.Keeper{Folder: install.Folder{Dir: o.confDir}, Name: o.name, OldName: o.oldName,
		Conflist: content, TLS: store.cniTLS(), Refresh: o.refresh, Log: d.Log.Named("cni"),
		Ready: func() bool { ready, _ := d.Control.Ready(); return ready }}}
	if d.Kube != nil {
		c.Token = func(ctx context.Context) (install.Credential, error) { return c.credential(ctx, d, o) }
	}
	return c, nil
}

// cniTLS returns the plugins' certificates for etcd, by the name of their copies.
func (o *datastoreOptions) cniTLS() map[string]string {
	files := map[string]string{}
	for name, file := range map[string]string{"etcd-ca": o.etcdCAFile, "etcd-cert": o.etcdCertFile,
		"etcd-key": o.etcdKeyFile} {
		if file != "" && o.kind == connect.Etcd {
			files[name] = file
		}
	}
	return files
}

// values returns the values of the tokens of a network configuration.
func (o *cniOptions) values(d deps.Deps, store datastoreOptions) map[string]string {
	host := func(name string) string { return filepath.Join(o.netDir, name) }
	copied := store.cniTLS()
	certificate := func(name string) string {
		if copied[name] == "" {
			return ""
		}
		return host(install.TLSFolder + "/" + name)
	}
	datastore := d.Node.Datastore
	if datastore == connect.Embedded {
		datastore = connect.Etcd
	}
	address, port := os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")
	return map[string]string{"LOG_LEVEL": o.logLevel, "LOG_FILE_PATH": o.logFile, "LOG_FILE_MAX_SIZE": "100",
		"LOG_FILE_MAX_AGE": "30", "LOG_FILE_MAX_COUNT": "10", "DATASTORE_TYPE": datastore,
		"KUBERNETES_NODE_NAME": d.Node.Name,
		"KUBECONFIG_FILEPATH":  host(install.KubeconfigName), "CNI_MTU": strconv.Itoa(o.mtu),
		"KUBERNETES_SERVICE_HOST": address, "KUBERNETES_SERVICE_PORT": port, "SERVICEACCOUNT_TOKEN": "",
		"CALICO_API_GROUP": os.Getenv("CALICO_API_GROUP"), "ETCD_ENDPOINTS": store.etcdEndpoints,
		"ETCD_DISCOVERY_SRV": "",
		"ETCD_CERT_FILE":     certificate("etcd-cert"), "ETCD_CA_CERT_FILE": certificate("etcd-ca"),
		"ETCD_KEY_FILE": certificate("etcd-key"), "REQUIRE_MTU_FILE": "false"}
}

// The requested lifetimes of a token; the server may choose others. A token is renewed when between a quarter and half
// of its time is over, so the plugin can do without manxd for at least half of it. One that is not bound to the Node is
// good on any host, and on a node that is gone.
const (
	tokenLifetime   = 4 * time.Hour
	unboundLifetime = time.Hour
)

// credential requests a token for the plugins, and returns it with its kubeconfig.
func (c *cniConfig) credential(ctx context.Context, d deps.Deps, o cniOptions) (install.Credential, error) {
	api, err := kubeapi.New(d.Kube)
	if err != nil {
		return install.Credential{}, err
	}
	namespace := kubernetesNamespace(o.podNamespace)
	token, err := api.RequestToken(ctx, namespace, o.account, d.Node.Kubernetes, tokenLifetime)
	unbound := errors.Is(err, kubeapi.ErrNotBound)
	if unbound {
		token, err = api.RequestToken(ctx, namespace, o.account, "", unboundLifetime)
	}
	if err != nil {
		return install.Credential{}, err
	}
	c.unbound.Store(unbound)
	host, ca, err := serverOf(d.Kube)
	if err != nil {
		return install.Credential{}, err
	}
	text, err := install.Kubeconfig(host, ca, d.Kube.Insecure, token.Token)
	return install.Credential{Kubeconfig: text, Expires: token.Expires, Refused: func(ctx context.Context) bool {
		return kubeapi.Refused(ctx, d.Kube, token.Token)
	}}, err
}

// serverOf returns the URL of the API with its CA.
func serverOf(config *rest.Config) (server string, ca []byte, err error) {
	if ca = config.CAData; len(ca) == 0 && config.CAFile != "" {
		if ca, err = os.ReadFile(config.CAFile); err != nil {
			return "", nil, err
		}
	}
	if strings.Contains(config.Host, "://") {
		return config.Host, ca, nil
	}
	if config.Host == "" {
		return "", nil, errors.New("the Kubernetes API has no address")
	}
	host := config.Host
	if ip := net.ParseIP(host); ip != nil && ip.To4() == nil {
		host = "[" + host + "]"
	}
	return (&url.URL{Scheme: "https", Host: host}).String(), ca, nil
}
