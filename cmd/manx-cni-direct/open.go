package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	"go.uber.org/zap"

	"github.com/manxnet/manx/cni"
	"github.com/manxnet/manx/cni/engine"
	"github.com/manxnet/manx/cni/kubeapi"
	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/connect"
	"github.com/manxnet/manx/datastore/etcd"
	"github.com/manxnet/manx/datastore/kubernetes"
)

// settings returns the datastore settings of the network configuration, with the environment for missing ones, or else
// those of the local manxd.
func settings(c *cni.Config, getenv func(string) string) connect.Settings {
	s := connect.FromEnvironment(getenv)
	if c.DatastoreType != "" {
		s.Type = c.DatastoreType
	}
	s.RunDir = filepath.Dir(c.ManxdSocket)
	s.Etcd = s.Etcd.With(etcd.Config{
		Endpoints: etcd.SplitEndpoints(c.EtcdEndpoints),
		CAFile:    c.EtcdCACertFile, CertFile: c.EtcdCertFile, KeyFile: c.EtcdKeyFile,
		Username: c.EtcdUsername, PasswordFile: c.EtcdPasswordFile,
	})
	s.Kube = kubernetesConfig(c, getenv)
	if s.Type == "" && len(s.Etcd.Endpoints) == 0 && c.Kubernetes.Kubeconfig != "" && c.Nodename != "" {
		s.Type = connect.Kubernetes // as in Calico's plugin
	}
	return s
}

// openDatastore connects to the datastore of a network configuration.
func openDatastore(
	ctx context.Context, c *cni.Config, getenv func(string) string, log *zap.Logger,
) (engine.Store, func(), error) {
	s := settings(c, getenv)
	s.Warn = func(text string) { log.Warn("datastore: " + text) }
	store, err := connect.Open(ctx, s, zap.NewNop())
	if errors.Is(err, connect.ErrNoLocal) {
		return nil, nil, types.NewError(types.ErrTryAgainLater, "the datastore is not known yet", err.Error()+
			": start manxd, or set etcd_endpoints in the network configuration or ETCD_ENDPOINTS in the environment")
	}
	if errors.Is(err, datastore.ErrUnauthorized) && s.Kube.Kubeconfig != "" {
		return nil, nil, types.NewError(types.ErrTryAgainLater, "the datastore refuses the token of the plugin",
			fmt.Sprintf("%v: manxd renews it in %s, and it ends some hours after manxd has: start manxd on this node",
				err, s.Kube.Kubeconfig))
	}
	if err != nil {
		return nil, nil, err
	}
	return store, func() { _ = store.Close() }, nil
}

// kubernetes returns the API of a network configuration.
func (p *plugin) kubernetes(c *cni.Config) (*kubeapi.API, error) {
	k, err := kubernetesConfig(c, p.getenv).REST()
	if err != nil {
		return nil, err
	}
	return kubeapi.New(k)
}

// kubernetesConfig returns the Kubernetes settings of the network configuration, with the environment for missing ones.
// Of a URL of the API it ignores the path, as Calico does.
func kubernetesConfig(c *cni.Config, getenv func(string) string) kubernetes.Config {
	k := kubernetes.ConfigFromEnv(getenv)
	k.UserAgent = kubernetes.UserAgent("manx-cni-direct", buildVersion)
	root, _, _ := strings.Cut(cmp.Or(c.Policy.APIRoot, c.Kubernetes.APIRoot), "/api/")
	k.Kubeconfig = cmp.Or(c.Kubernetes.Kubeconfig, k.Kubeconfig)
	k.Endpoint = cmp.Or(root, k.Endpoint)
	k.Token = cmp.Or(c.Policy.AuthToken, k.Token)
	k.CertFile, k.KeyFile = cmp.Or(c.Policy.Certificate, k.CertFile), cmp.Or(c.Policy.Key, k.KeyFile)
	k.CAFile = cmp.Or(c.Policy.CA, k.CAFile)
	k.Group = cmp.Or(c.CalicoAPIGroup, k.Group)
	if c.QPS > 0 {
		k.QPS, k.Burst = c.QPS, c.Burst
	}
	return k
}
