package connect

import (
	"github.com/manxnet/manx/datastore/etcd"
	"github.com/manxnet/manx/datastore/kubernetes"
)

// The types of datastore, as DATASTORE_TYPE and calicoctl's configuration file spell them.
const (
	Etcd       = "etcdv3"
	Kubernetes = "kubernetes"
	// Embedded is the etcd in manxd; the other programs find it through its run directory.
	Embedded = "embedded"
)

// Settings select the datastore, configure its access, and receive its warnings.
type Settings struct {
	// Type is one of those above. Empty: etcd if endpoints are set; else the local manxd's datastore; else Kubernetes,
	// if a kubeconfig or similar is set.
	Type string
	// Etcd configures access to etcd, from a file, the environment or a network configuration.
	Etcd etcd.Config
	// Over takes priority over Etcd: the flags of a command.
	Over etcd.Config
	// Kube configures access to the Kubernetes API as the datastore. OverKube takes priority.
	Kube, OverKube kubernetes.Config
	// RunDir is the run directory of this host's manxd, whose datastore is the default. Empty for manxd.
	RunDir string

	// Wait makes Open wait for a datastore that does not answer. Waiting receives the reason, each time.
	Wait    bool
	Waiting func(error)
	// Warn receives each warning about unsafe or expiring settings, one sentence each: before the datastore is opened,
	// and each new one until it is closed.
	Warn func(text string)
}

// FromEnvironment reads Calico's environment variables. getenv is usually os.Getenv.
func FromEnvironment(getenv func(string) string) Settings {
	typ := getenv("CALICO_DATASTORE_TYPE")
	if typ == "" {
		typ = getenv("DATASTORE_TYPE")
	}
	return Settings{Type: typ, Etcd: etcd.ConfigFromEnv(getenv), Kube: kubernetes.ConfigFromEnv(getenv)}
}
