package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/manxnet/manx/daemon/deps"
	"github.com/manxnet/manx/daemon/distribution"
	"github.com/manxnet/manx/daemon/envflag"
	"github.com/manxnet/manx/datastore/connect"
	"github.com/manxnet/manx/datastore/kubernetes"
	"github.com/manxnet/manx/datastore/node"
)

// kubernetesTimeout bounds one request to the Kubernetes API.
const kubernetesTimeout = 10 * time.Second

// kubernetesAPI returns the settings of the Kubernetes API, nil if there is none. Invalid settings are an error only if
// the API is needed, as the datastore or for an address.
func (o options) kubernetesAPI(log *zap.Logger) (*rest.Config, error) {
	o.datastore.kube.Log = log
	config, err := o.datastore.kube.REST()
	switch {
	case err == nil:
		return config, nil
	case o.datastore.kind == connect.Kubernetes:
		return nil, usage(err)
	case errors.Is(err, kubernetes.ErrNoKubernetes):
		return nil, nil
	case o.node.detectsFromKubernetes():
		return nil, err
	}
	log.Warn("the Kubernetes API cannot be used", zap.Error(err))
	return nil, nil
}

// kubernetes returns the settings of the Kubernetes API as the datastore.
func (o options) kubernetes() kubernetes.Config {
	c := o.datastore.kube
	c.InterfacePrefix, _, _ = strings.Cut(o.host.interfacePrefix, ",")
	c.Follows = true
	return c
}

// kubernetesFlags adds the flags for access to the Kubernetes API to a set.
func kubernetesFlags(s envflag.Set, c *kubernetes.Config) {
	c.UserAgent = kubernetes.UserAgent("manxd", version)
	both := func(env string) []string { return []string{"CALICO_" + env, env} }
	s.String(&c.Kubeconfig, "kubeconfig", "", "kubeconfig of the Kubernetes API; empty: the credentials of this pod",
		both("KUBECONFIG")...)
	s.String(&c.Context, "k8s-context", "", "context of the kubeconfig, if not its current one",
		both("K8S_CURRENT_CONTEXT")...)
	s.String(&c.Endpoint, "k8s-api-endpoint", "", "URL of the Kubernetes API, in place of the kubeconfig's",
		both("K8S_API_ENDPOINT")...)
	s.String(&c.CAFile, "k8s-ca-file", "", "CA that signs the certificate of the Kubernetes API",
		both("K8S_CA_FILE")...)
	s.String(&c.CertFile, "k8s-cert-file", "", "client certificate for the Kubernetes API", both("K8S_CERT_FILE")...)
	s.String(&c.KeyFile, "k8s-key-file", "", "key of --k8s-cert-file", both("K8S_KEY_FILE")...)
	s.String(&c.TokenFile, "k8s-token-file", "", "file that holds a token for the Kubernetes API, read again when it "+
		"changes", "MANX_K8S_TOKEN_FILE")
	s.Bool(&c.Insecure, "k8s-insecure-skip-tls-verify", false, "do not verify the certificate of the Kubernetes API",
		both("K8S_INSECURE_SKIP_TLS_VERIFY")...)
	s.Float32(&c.QPS, "k8s-client-qps", 0, "limit of requests per second to the Kubernetes API; 0: no limit of the "+
		"client", both("K8S_CLIENT_QPS")...)
	s.Int(&c.Burst, "k8s-client-burst", 0, "limit of requests at once, with --k8s-client-qps; 0: 100",
		both("K8S_CLIENT_BURST")...)
	s.Bool(&c.UsePodCIDR, "use-pod-cidr", false, "another plugin takes the addresses of pods out of the nodes' pod "+
		"CIDRs, with the Kubernetes datastore", both("USE_POD_CIDR")...)
	s.String(&c.Group, "calico-api-group", "", "API group of Calico's custom resources, crd.projectcalico.org/v1 or "+
		"projectcalico.org/v3; empty: as the API has them", "CALICO_API_GROUP")
}

// kubernetesAddress returns the lookup of a Kubernetes node's InternalIP.
func kubernetesAddress(config *rest.Config, name string) (node.KubernetesAddress, error) {
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("API of Kubernetes %s: %w", config.Host, err)
	}
	client.Timeout = kubernetesTimeout
	server, _, err := rest.DefaultServerURL(config.Host, "", corev1.SchemeGroupVersion, true)
	if err != nil {
		return nil, fmt.Errorf("server %q of the kubeconfig: %w", config.Host, err)
	}
	at := server.JoinPath("api/v1/nodes", url.PathEscape(name)).String()
	return func(ctx context.Context, family node.Family) (netip.Addr, error) {
		var n corev1.Node
		if err := getJSON(ctx, client, at, &n); err != nil {
			return netip.Addr{}, fmt.Errorf("node %s of Kubernetes: %w", name, err)
		}
		return internalIP(&n, family)
	}, nil
}

// getJSON reads an object. An error of the server keeps its text.
func getJSON(ctx context.Context, client *http.Client, at string, into any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close() //nolint:errcheck // it was read
	body, err := io.ReadAll(io.LimitReader(resp.Body, 4<<20))
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		var status metav1.Status
		_ = json.Unmarshal(body, &status)
		return fmt.Errorf("%s answers %s: %s", at, resp.Status, cmp.Or(status.Message, "no reason given"))
	}
	return json.Unmarshal(body, into)
}

// internalIP returns the first InternalIP of a family.
func internalIP(n *corev1.Node, family node.Family) (netip.Addr, error) {
	for _, a := range n.Status.Addresses {
		ip, err := netip.ParseAddr(a.Address)
		if a.Type == corev1.NodeInternalIP && err == nil && ip.Is4() == (family == node.IPv4) {
			return ip, nil
		}
	}
	return netip.Addr{}, fmt.Errorf("node %s of Kubernetes has no InternalIP of %s", n.Name, family)
}

// completeConfig sets missing settings of this node from the cluster.
func completeConfig(ctx context.Context, d deps.Deps, config *node.Config) {
	if d.Kube == nil {
		return
	}
	log := d.Log.Named("node")
	found := distribution.Detect(ctx, d.Kube, log)
	if found.Unknown != nil {
		log.Warn("it is not known which addresses the cluster has for pods: no default pool is made now",
			zap.Error(found.Unknown))
	}
	found.Apply(config)
}
