package connect

import (
	"github.com/manxnet/manx/datastore/etcd"
	"github.com/manxnet/manx/datastore/kubernetes"
)

// The types of datastore, as DATASTORE_TYPE and calicoctl's configuration file spell them.
const (
	Etcd       = "etcdv3"
	Kubernetes = "kubernetes"
	// Embedded is the etcd in manxd, of which the other programs learn by its run directory.
	Embedded = "embedded"
)

// Settings select the datastore, and say how it is reached and where its warnings go.
type Settings struct {
	// Type is one of those above. Empty: etcd if there are endpoints; else the datastore of the local manxd; else
	// Kubernetes, if a kubeconfig or the like is set.
	Type string
	// Etcd is how etcd is reached, as a file, the environment or a network configuration says.
	Etcd etcd.Config
	// Over goes before it: the flags of a command.
	Over etcd.Config
	// Kube is how the Kubernetes API is reached, where that is the datastore, and OverKube goes before it.
	Kube, OverKube kubernetes.Config
	// RunDir is the run directory of this host's manxd, whose datastore is used if no other is set. Empty for manxd.
	RunDir string

	// Wait is whether Open waits for a datastore that does not answer. Waiting is told why it waits, each time.
	Wait    bool
	Waiting func(error)
	// Warn is given each sentence about what works, but not safely, or not for long: before the datastore is opened,
	// and whenever there is a new one until it is closed.
	Warn func(text string)
}

// FromEnvironment reads Calico's environment names. getenv is usually os.Getenv.
func FromEnvironment(getenv func(string) string) Settings {
	typ := getenv("CALICO_DATASTORE_TYPE")
	if typ == "" {
		typ = getenv("DATASTORE_TYPE")
	}
	return Settings{Type: typ, Etcd: etcd.ConfigFromEnv(getenv), Kube: kubernetes.ConfigFromEnv(getenv)}
}
