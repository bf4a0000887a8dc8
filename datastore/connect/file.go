package connect

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"sigs.k8s.io/yaml"

	"github.com/manxnet/manx/datastore/etcd"
	"github.com/manxnet/manx/datastore/kubernetes"
	"github.com/manxnet/manx/datastore/model"
)

// DefaultFile is the path of calicoctl's configuration.
const DefaultFile = "/etc/calico/calicoctl.cfg"

// FromFile reads a configuration file of calicoctl or, if DefaultFile does not exist, the environment: as calicoctl,
// never both.
func FromFile(file string, getenv func(string) string) (Settings, error) {
	raw, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) && file == DefaultFile {
		return FromEnvironment(getenv), nil
	}
	if err != nil {
		return Settings{}, fmt.Errorf("configuration file: %w", err)
	}
	s, err := parseFile(raw)
	if err != nil {
		return Settings{}, fmt.Errorf("configuration file %s: %w", file, err)
	}
	return s, nil
}

// apiConfig is calicoctl's configuration file.
type apiConfig struct {
	APIVersion string         `json:"apiVersion"`
	Kind       string         `json:"kind"`
	Metadata   map[string]any `json:"metadata"`
	Spec       struct {
		DatastoreType string `json:"datastoreType"`
		EtcdEndpoints string `json:"etcdEndpoints"`
		EtcdUsername  string `json:"etcdUsername"`
		EtcdPassword  string `json:"etcdPassword"`
		// EtcdPasswordFile is the only field that calicoctl does not know.
		EtcdPasswordFile string `json:"etcdPasswordFile"`

		EtcdKeyFile  string `json:"etcdKeyFile"`
		EtcdCertFile string `json:"etcdCertFile"`
		EtcdCAFile   string `json:"etcdCACertFile"`
		kubernetesSpec
		unsupportedSpec
	} `json:"spec"`
}

// kubernetesSpec has the fields for a Kubernetes datastore only. K8sDisableNodePoll concerns a method to watch Nodes
// that Manx does not use.
type kubernetesSpec struct {
	Kubeconfig               string  `json:"kubeconfig"`
	KubeconfigInline         string  `json:"kubeconfigInline"`
	K8sAPIEndpoint           string  `json:"k8sAPIEndpoint"`
	K8sKeyFile               string  `json:"k8sKeyFile"`
	K8sCertFile              string  `json:"k8sCertFile"`
	K8sCAFile                string  `json:"k8sCAFile"`
	K8sAPIToken              string  `json:"k8sAPIToken"`
	K8sInsecureSkipTLSVerify bool    `json:"k8sInsecureSkipTLSVerify"`
	K8sDisableNodePoll       bool    `json:"k8sDisableNodePoll"`
	UsePodCIDR               bool    `json:"usePodCIDR"`
	K8sClientQPS             float32 `json:"k8sClientQPS"`
	K8sClientBurst           int     `json:"k8sClientBurst"`
	K8sCurrentContext        string  `json:"k8sCurrentContext"`
	CalicoAPIGroup           string  `json:"calicoAPIGroup"`
}

// unsupportedSpec has fields that would change the access to etcd, so they must not be ignored.
type unsupportedSpec struct {
	EtcdDiscoverySrv string `json:"etcdDiscoverySrv"`
	EtcdKey          string `json:"etcdKey"`
	EtcdCert         string `json:"etcdCert"`
	EtcdCACert       string `json:"etcdCACert"`
}

func parseFile(raw []byte) (Settings, error) {
	var a apiConfig
	if err := yaml.UnmarshalStrict(raw, &a); err != nil {
		return Settings{}, err
	}
	s := a.Spec
	switch {
	case a.APIVersion != model.APIVersion:
		return Settings{}, fmt.Errorf("apiVersion is %q: want %q", a.APIVersion, model.APIVersion)
	case a.Kind != "CalicoAPIConfig":
		return Settings{}, fmt.Errorf("kind is %q: want %q", a.Kind, "CalicoAPIConfig")
	case s.unsupportedSpec != unsupportedSpec{}:
		return Settings{}, errors.New("etcdDiscoverySrv, etcdKey, etcdCert and etcdCACert are not supported: want " +
			"etcdEndpoints, etcdKeyFile, etcdCertFile and etcdCACertFile")
	}
	return Settings{Type: s.DatastoreType, Etcd: etcd.Config{
		Endpoints: etcd.SplitEndpoints(s.EtcdEndpoints),
		CAFile:    s.EtcdCAFile, CertFile: s.EtcdCertFile, KeyFile: s.EtcdKeyFile,
		Username: s.EtcdUsername, Password: s.EtcdPassword, PasswordFile: s.EtcdPasswordFile,
	}, Kube: s.config()}, nil
}

func (k kubernetesSpec) config() kubernetes.Config {
	return kubernetes.Config{
		Kubeconfig: k.Kubeconfig, Inline: k.KubeconfigInline, Context: k.K8sCurrentContext, Endpoint: k.K8sAPIEndpoint,
		CAFile: k.K8sCAFile, CertFile: k.K8sCertFile, KeyFile: k.K8sKeyFile, Token: k.K8sAPIToken,
		Insecure: k.K8sInsecureSkipTLSVerify, QPS: k.K8sClientQPS, Burst: k.K8sClientBurst,
		UsePodCIDR: k.UsePodCIDR, Group: k.CalicoAPIGroup,
	}
}
