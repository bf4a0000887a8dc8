package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"go.uber.org/zap"
	"k8s.io/client-go/rest"

	"github.com/manxnet/manx/daemon/envflag"
	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/connect"
	"github.com/manxnet/manx/datastore/etcd"
	"github.com/manxnet/manx/datastore/etcd/embedded"
	"github.com/manxnet/manx/datastore/kubernetes"
	"github.com/manxnet/manx/datastore/laststate"
)

// datastoreOptions choose the datastore, and the Kubernetes API.
type datastoreOptions struct {
	kind             string // connect.Etcd, connect.Kubernetes or connect.Embedded
	etcdEndpoints    string
	etcdCAFile       string
	etcdCertFile     string
	etcdKeyFile      string
	etcdUsername     string
	etcdPassword     string
	etcdPasswordFile string
	wait             bool

	dataDir          string
	embeddedListen   string
	embeddedInsecure bool
	embeddedCAFile   string
	embeddedCertFile string
	embeddedKeyFile  string

	kube      kubernetes.Config
	rewatched func()        // a watch begins again
	patience  time.Duration // before the last state of an earlier run is used; zero: as package lastrun has it
}

// Flags implements group.
func (o *datastoreOptions) Flags(s envflag.Set) {
	s.String(&o.kind, "datastore", "", "etcdv3, kubernetes or embedded; empty: etcdv3 if there are endpoints, "+
		"in a pod kubernetes, else embedded", "CALICO_DATASTORE_TYPE", "DATASTORE_TYPE")
	s.String(&o.etcdEndpoints, "etcd-endpoints", "", "etcd servers, comma separated URLs", "CALICO_ETCD_ENDPOINTS",
		"ETCD_ENDPOINTS")
	s.String(&o.etcdCAFile, "etcd-ca-cert-file", "", "CA that signs the etcd servers' certificates",
		"CALICO_ETCD_CA_CERT_FILE", "ETCD_CA_CERT_FILE")
	s.String(&o.etcdCertFile, "etcd-cert-file", "", "client certificate for etcd", "CALICO_ETCD_CERT_FILE",
		"ETCD_CERT_FILE")
	s.String(&o.etcdKeyFile, "etcd-key-file", "", "key of the client certificate", "CALICO_ETCD_KEY_FILE",
		"ETCD_KEY_FILE")
	s.String(&o.etcdUsername, "etcd-username", "", "user for etcd", "CALICO_ETCD_USERNAME", "ETCD_USERNAME")
	s.String(&o.etcdPassword, "etcd-password", "",
		"password for etcd; everybody on this host sees it in the output of ps: use --etcd-password-file instead",
		"CALICO_ETCD_PASSWORD", "ETCD_PASSWORD")
	s.String(&o.etcdPasswordFile, "etcd-password-file", "", "file that holds the password for etcd",
		"CALICO_ETCD_PASSWORD_FILE", "ETCD_PASSWORD_FILE")
	s.Bool(&o.wait, "wait-for-datastore", false, "at start, wait for the datastore instead of "+
		"ending with an error", "WAIT_FOR_DATASTORE")
	o.embeddedFlags(s)
	kubernetesFlags(s, &o.kube)
}

// embeddedFlags adds the flags of the datastore that manxd itself serves.
func (o *datastoreOptions) embeddedFlags(s envflag.Set) {
	s.String(&o.dataDir, "data-dir", "/var/lib/manx", "folder of the embedded datastore", "MANX_DATA_DIR")
	s.String(&o.embeddedListen, "embedded-listen", "",
		"ADDRESS:PORT at which the embedded datastore serves other hosts, with certificates that 'manxd "+
			"client-certificate' makes; empty: a unix socket in the data directory alone", "MANX_EMBEDDED_LISTEN")
	s.Bool(&o.embeddedInsecure, "embedded-insecure", false,
		"let everybody who reaches --embedded-listen read and change the cluster, without a certificate",
		"MANX_EMBEDDED_INSECURE")
	s.String(&o.embeddedCAFile, "embedded-ca-file", "",
		"CA of the clients' certificates, in place of the one in the data directory", "MANX_EMBEDDED_CA_FILE")
	s.String(&o.embeddedCertFile, "embedded-cert-file", "",
		"server certificate of the embedded datastore, in place of a generated one", "MANX_EMBEDDED_CERT_FILE")
	s.String(&o.embeddedKeyFile, "embedded-key-file", "", "key of --embedded-cert-file", "MANX_EMBEDDED_KEY_FILE")
}

// Check implements group. It chooses the datastore if no setting does.
func (o *datastoreOptions) Check() error {
	if o.kind == "" {
		o.kind = usualDatastore(o.etcdEndpoints, os.Getenv, serviceAccountToken)
	}
	switch o.kind {
	case connect.Embedded:
		if o.etcdEndpoints != "" {
			return errors.New("--etcd-endpoints does not go with --datastore=embedded: either is enough")
		}
	case connect.Etcd:
		if o.etcdEndpoints == "" {
			return errors.New("--datastore=etcdv3 needs --etcd-endpoints (or ETCD_ENDPOINTS)")
		}
	case connect.Kubernetes:
		o.kube = o.kube.OfUser()
	default:
		return fmt.Errorf("--datastore=%s: want etcdv3, kubernetes or embedded", o.kind)
	}
	return nil
}

// serviceAccountToken is the file with the token of a pod.
const serviceAccountToken = "/var/run/secrets/kubernetes.io/serviceaccount/token"

// usualDatastore returns the datastore if no setting chooses one: that of etcd's endpoints; in a pod the Kubernetes
// API, as in Calico, since an embedded one would make each node a cluster of its own; else an embedded one.
func usualDatastore(etcdEndpoints string, getenv func(string) string, token string) string {
	if etcdEndpoints != "" {
		return connect.Etcd
	}
	if _, err := os.Stat(token); err == nil && getenv("KUBERNETES_SERVICE_HOST") != "" {
		return connect.Kubernetes
	}
	return connect.Embedded
}

// openStore connects to the datastore, after starting it if it is embedded; waiting receives the reason of each wait.
// The returned function stops both.
func openStore(ctx context.Context, o options, waiting func(error), log *zap.Logger) (datastore.Backend, func(),
	error) {
	config, stop, err := o.datastore.etcd(ctx, log)
	if err != nil {
		return nil, nil, err
	}
	config.Rewatched = o.datastore.rewatched
	settings := connect.Settings{
		Type: o.datastore.kind, Etcd: config, Kube: o.kubernetes(), Wait: o.datastore.wait, Waiting: waiting,
		Warn: func(text string) { log.Warn("datastore: " + text) },
	}
	if err := connect.WriteLocal(o.host.runDir, settings); err != nil {
		log.Warn("manxctl and the CNI plugin need settings to find the datastore", zap.Error(err))
	}
	store, err := connect.Open(ctx, settings, log)
	if err != nil {
		stop()
		if ctx.Err() != nil {
			return nil, nil, ctx.Err()
		}
		return nil, nil, fmt.Errorf("datastore: %w", err)
	}
	return store, func() {
		if err := store.Close(); err != nil {
			log.Warn("datastore connection did not close cleanly", zap.Error(err))
		}
		stop()
	}, nil
}

// etcd returns the settings of the datastore, after starting it if it is embedded; stop ends it then.
func (o *datastoreOptions) etcd(ctx context.Context, log *zap.Logger) (config etcd.Config, stop func(), err error) {
	if o.kind != connect.Embedded {
		return etcd.Config{
			Endpoints: etcd.SplitEndpoints(o.etcdEndpoints),
			CAFile:    o.etcdCAFile, CertFile: o.etcdCertFile, KeyFile: o.etcdKeyFile,
			Username: o.etcdUsername, Password: o.etcdPassword, PasswordFile: o.etcdPasswordFile,
		}, func() {}, nil
	}
	server, err := embedded.Start(ctx, embedded.Config{
		DataDir: o.dataDir, Listen: o.embeddedListen, Insecure: o.embeddedInsecure,
		CAFile: o.embeddedCAFile, CertFile: o.embeddedCertFile, KeyFile: o.embeddedKeyFile,
	}, log.Named("etcd"))
	if err != nil {
		return config, nil, err
	}
	if o.embeddedInsecure {
		log.Warn("the embedded datastore requires no certificate: everybody who reaches it may change the cluster",
			zap.String("address", server.Address()))
	}
	return server.Config(), func() {
		if err := server.Close(); err != nil {
			log.Error("embedded datastore did not stop cleanly", zap.Error(err))
		}
	}, nil
}

// lastStateFile is the path of the state that is kept for the next run.
func (o *datastoreOptions) lastStateFile() string { return filepath.Join(o.dataDir, "last-state.json") }

// origin identifies the datastore for the state that is kept for the next run.
func (o *datastoreOptions) origin(kube *rest.Config) (laststate.Origin, error) {
	from := laststate.Origin{Type: o.kind}
	var authorities []byte
	var err error
	switch o.kind {
	case connect.Embedded:
	case connect.Kubernetes:
		from.Servers, authorities = []string{kube.Host}, kube.CAData
		if len(authorities) == 0 && kube.CAFile != "" {
			authorities, err = os.ReadFile(kube.CAFile)
		}
	default:
		from.Servers = etcd.SplitEndpoints(o.etcdEndpoints)
		if o.etcdCAFile != "" {
			authorities, err = os.ReadFile(o.etcdCAFile)
		}
	}
	for block, rest := pem.Decode(authorities); block != nil; block, rest = pem.Decode(rest) {
		sum := sha256.Sum256(block.Bytes)
		from.Authorities = append(from.Authorities, hex.EncodeToString(sum[:]))
	}
	return from, err
}
