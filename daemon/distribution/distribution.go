// Package distribution detects by which installer a Kubernetes cluster was made, and the pod networks in its settings.
package distribution

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/manxnet/manx/datastore/node"
)

// The ConfigMaps of kube-system by which calico/node detects the installer.
const (
	kubeadmConfigMap = "kubeadm-config"
	rancherConfigMap = "full-cluster-state"
)

// Distribution describes the installation of Kubernetes.
type Distribution struct {
	Unknown error // why kubeadm's settings could not be read now

	kubeadm, rancher bool
	pods             []netip.Prefix // kubeadm's pod networks
}

const (
	requestTimeout = 10 * time.Second
	tries          = 5
	pause          = 2 * time.Second
)

// Detect reads both ConfigMaps. It logs one that is missing or may not be read, and still evaluates the other one.
func Detect(ctx context.Context, api *rest.Config, log *zap.Logger) (d Distribution) {
	client, err := typedcorev1.NewForConfig(api)
	if err != nil {
		return Distribution{Unknown: err}
	}
	maps := client.ConfigMaps(metav1.NamespaceSystem)
	kubeadm, err := readConfigMap(ctx, maps, kubeadmConfigMap, log)
	if err != nil {
		return Distribution{Unknown: err}
	}
	if kubeadm != nil {
		d.kubeadm, d.pods = true, podSubnets(kubeadm.Data)
	}
	rancher, err := readConfigMap(ctx, maps, rancherConfigMap, log)
	if err != nil {
		log.Info("a ConfigMap by which the cluster's kind is known cannot be read", zap.Error(err))
	}
	d.rancher = rancher != nil
	return d
}

// readConfigMap returns nil for one that is missing or may not be read. It retries while the API does not answer.
func readConfigMap(ctx context.Context, from typedcorev1.ConfigMapInterface, name string,
	log *zap.Logger) (c *corev1.ConfigMap, err error) {
	for try := range tries {
		if try > 0 {
			select {
			case <-ctx.Done():
				return nil, ctx.Err()
			case <-time.After(pause):
			}
		}
		limited, cancel := context.WithTimeout(ctx, requestTimeout)
		c, err = from.Get(limited, name, metav1.GetOptions{})
		cancel()
		switch {
		case err == nil:
			return c, nil
		case apierrors.IsNotFound(err):
			return nil, nil
		case apierrors.IsForbidden(err), apierrors.IsUnauthorized(err):
			log.Info("a ConfigMap by which the cluster's kind is known may not be read", zap.String("configmap", name),
				zap.Error(err))
			return nil, nil
		}
	}
	return nil, fmt.Errorf("ConfigMap %s/%s: %w", metav1.NamespaceSystem, name, err)
}

var podSubnetLine = regexp.MustCompile(`(?m)^\s*podSubnet:\s*(.+?)\s*$`)

// podSubnets returns the pod networks of kubeadm's ClusterConfiguration.
func podSubnets(data map[string]string) (list []netip.Prefix) {
	for _, key := range slices.Sorted(maps.Keys(data)) {
		found := podSubnetLine.FindStringSubmatch(data[key])
		if found == nil {
			continue
		}
		for text := range strings.SplitSeq(strings.Trim(found[1], `"'`), ",") {
			if p, err := netip.ParsePrefix(strings.TrimSpace(text)); err == nil {
				list = append(list, p.Masked())
			}
		}
		return list
	}
	return nil
}

// Apply sets the default pools and the cluster's type from the distribution, where the settings do not. While kubeadm's
// settings are unknown there are no default pools.
func (d Distribution) Apply(c *node.Config) {
	for _, kind := range []struct {
		found bool
		name  string
	}{{d.kubeadm, "kubeadm"}, {d.rancher, "rancher"}} {
		if kind.found {
			c.ClusterType = strings.TrimPrefix(c.ClusterType+","+kind.name, ",")
		}
	}
	if c.NoDefaultPools {
		return
	}
	for _, pool := range []struct {
		config *node.PoolConfig
		ipv4   bool
	}{{&c.Pool4, true}, {&c.Pool6, false}} {
		at := slices.IndexFunc(d.pods, func(p netip.Prefix) bool { return p.Addr().Is4() == pool.ipv4 })
		switch {
		case pool.config.CIDR != "":
		case d.Unknown != nil:
			pool.config.CIDR = noPool // a pool with other addresses than the cluster's would stay
		case at >= 0:
			pool.config.CIDR = d.pods[at].String()
		}
	}
}

// noPool as the CIDR of a default pool disables the pool.
const noPool = "none"
