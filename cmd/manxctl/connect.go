package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/spf13/pflag"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/connect"
	"github.com/manxnet/manx/datastore/etcd"
	"github.com/manxnet/manx/datastore/kubernetes"
)

// etcdFlags configure access to the datastore. A flag takes priority over the file or the environment.
type etcdFlags struct {
	config    string
	endpoints string
	overrides etcd.Config
	kube      kubernetes.Config
}

func (e *etcdFlags) add(f *pflag.FlagSet) {
	f.StringVarP(&e.config, "config", "c", connect.DefaultFile, "file with the settings of the datastore, as "+
		"for calicoctl")
	f.StringVar(&e.endpoints, "etcd-endpoints", "",
		"etcd endpoints, separated by commas (ETCD_ENDPOINTS; default: the datastore of the local manxd)")
	f.StringVar(&e.overrides.CAFile, "etcd-ca-cert-file", "", "CA certificate of etcd (ETCD_CA_CERT_FILE)")
	f.StringVar(&e.overrides.CertFile, "etcd-cert-file", "", "client certificate for etcd (ETCD_CERT_FILE)")
	f.StringVar(&e.overrides.KeyFile, "etcd-key-file", "", "key of the client certificate (ETCD_KEY_FILE)")
	f.StringVar(&e.overrides.Username, "etcd-username", "", "user for etcd (ETCD_USERNAME)")
	f.StringVar(&e.overrides.Password, "etcd-password", "",
		"password for etcd (ETCD_PASSWORD); everybody on this host sees it in the output of ps: use "+
			"--etcd-password-file instead")
	f.StringVar(&e.overrides.PasswordFile, "etcd-password-file", "",
		"file that holds the password for etcd (ETCD_PASSWORD_FILE)")
	f.StringVar(&e.kube.Kubeconfig, "kubeconfig", "",
		"kubeconfig of the cluster whose Kubernetes API is the datastore (KUBECONFIG, with DATASTORE_TYPE=kubernetes)")
	f.StringVar(&e.kube.Context, "context", "", "context of the kubeconfig, if not its current one "+
		"(K8S_CURRENT_CONTEXT)")
}

// open opens the datastore: that of the flags, of the configuration file or else of the environment, or the local
// manxd's.
func (c *cli) open(ctx context.Context) (datastore.Backend, error) {
	s, err := connect.FromFile(c.etcd.config, c.env)
	if err != nil {
		return nil, err
	}
	s.Over, s.OverKube, s.RunDir = c.etcd.overrides, c.etcd.kube, filepath.Dir(c.socket)
	s.OverKube.UserAgent = kubernetes.UserAgent("manxctl", version)
	s.Over.Endpoints = etcd.SplitEndpoints(c.etcd.endpoints)
	if c.plugin && s.Type == "" && len(s.Etcd.Endpoints)+len(s.Over.Endpoints) == 0 {
		s.Type, s.RunDir = connect.Kubernetes, "" // and not the datastore of a manxd on this host
	}
	s.Warn = func(text string) {
		fmt.Fprintln(c.err, "Warning:", text) //nolint:errcheck // nowhere to report it
	}
	store, err := connect.Open(ctx, s, c.calicoctl.log(c))
	if errors.Is(err, connect.ErrNoLocal) {
		return nil, fmt.Errorf("no datastore is set, and %w: start manxd, or set --etcd-endpoints, ETCD_ENDPOINTS, "+
			"--kubeconfig, KUBECONFIG or a file with --config", err)
	}
	return store, err
}

// contextNamespace returns the namespace of the kubeconfig's context; empty if it names none. The errors of the
// kubeconfig are those of open.
func (c *cli) contextNamespace() string {
	kube, err := c.kubeconfig()
	if err != nil {
		return ""
	}
	return kube.Namespace()
}
