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
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/manxnet/manx/datastore/node"
)

// kubernetesTimeout bounds one question to the Kubernetes API.
const kubernetesTimeout = 10 * time.Second

// asksKubernetes tells whether an address is to be detected with the help of Kubernetes.
func (o options) asksKubernetes() bool {
	const method = "kubernetes-internal-ip"
	return o.ipMethod == method || o.ip6Method == method
}

// kubernetesAddress looks up the InternalIP of a Kubernetes node, with the kubeconfig at a path or, without a path, as a
// pod of the cluster. It returns nil if there is neither.
func kubernetesAddress(kubeconfig, name string) (node.KubernetesAddress, error) {
	var config *rest.Config
	var err error
	if kubeconfig != "" {
		config, err = clientcmd.BuildConfigFromFlags("", kubeconfig)
	} else if config, err = rest.InClusterConfig(); errors.Is(err, rest.ErrNotInCluster) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", cmp.Or(kubeconfig, "of this pod"), err)
	}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", cmp.Or(kubeconfig, "of this pod"), err)
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

// getJSON reads an object; an error of the server is given in its own words.
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

// internalIP is the first InternalIP of a family.
func internalIP(n *corev1.Node, family node.Family) (netip.Addr, error) {
	for _, a := range n.Status.Addresses {
		ip, err := netip.ParseAddr(a.Address)
		if a.Type == corev1.NodeInternalIP && err == nil && ip.Is4() == (family == node.IPv4) {
			return ip, nil
		}
	}
	return netip.Addr{}, fmt.Errorf("node %s of Kubernetes has no InternalIP of %s", n.Name, family)
}
