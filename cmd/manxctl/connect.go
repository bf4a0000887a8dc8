package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/pflag"
	"go.uber.org/zap"
	"sigs.k8s.io/yaml"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/etcd"
	"github.com/manxnet/manx/datastore/model"
)

// defaultConfig is where calicoctl looks for its configuration.
const defaultConfig = "/etc/calico/calicoctl.cfg"

// etcdFlags say how to reach the datastore. What a flag sets goes before the file or the environment.
type etcdFlags struct {
	config    string
	endpoints string
	overrides etcd.Config
}

func (e *etcdFlags) add(f *pflag.FlagSet) {
	f.StringVarP(&e.config, "config", "c", defaultConfig, "file that says how to reach the datastore, as for calicoctl")
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
}

// open connects to the datastore.
func (c *cli) open(ctx context.Context) (datastore.Store, error) {
	runDir := filepath.Dir(c.socket)
	config, err := c.etcd.resolve(c.env, runDir)
	if err != nil {
		return nil, err
	}
	for _, text := range config.Warnings(time.Now()) {
		fmt.Fprintln(c.err, "Warning:", text) //nolint:errcheck // nowhere to report it
	}
	store, err := etcd.Open(ctx, config, zap.NewNop())
	if err != nil {
		return nil, etcd.HintLocal(err, config, runDir)
	}
	return store, nil
}

// resolve combines flags with the configuration file or, if there is none, with the environment: as calicoctl, never
// with both. If none of them names an endpoint, the datastore is that of the manxd with that run directory.
func (e *etcdFlags) resolve(env func(string) string, runDir string) (etcd.Config, error) {
	config, typ, err := e.fileOrEnv(env)
	if err != nil {
		return config, err
	}
	switch typ {
	case "", "etcdv3", "embedded":
	case "kubernetes":
		return config, errors.New(`datastore type "kubernetes" cannot be used yet: want "etcdv3"`)
	default:
		return config, fmt.Errorf(`datastore type %q is not known: want "etcdv3"`, typ)
	}
	if e.endpoints == "" && len(config.Endpoints) == 0 {
		if config, err = localConfig(runDir, config); err != nil {
			return config, err
		}
	}
	if e.overrides.Password != "" || e.overrides.PasswordFile != "" { // a flag takes the place of either
		config.Password, config.PasswordFile = "", ""
	}
	for _, o := range []struct{ to, from *string }{
		{&config.CAFile, &e.overrides.CAFile}, {&config.CertFile, &e.overrides.CertFile}, {&config.KeyFile, &e.overrides.KeyFile},
		{&config.Username, &e.overrides.Username}, {&config.Password, &e.overrides.Password},
		{&config.PasswordFile, &e.overrides.PasswordFile},
	} {
		if *o.from != "" {
			*o.to = *o.from
		}
	}
	if e.endpoints != "" {
		config.Endpoints = etcd.SplitEndpoints(e.endpoints)
	}
	return config, nil
}

// localConfig is how the local manxd reaches the datastore, as the user that is set otherwise.
func localConfig(runDir string, set etcd.Config) (etcd.Config, error) {
	config, err := etcd.ReadLocal(runDir, set)
	switch {
	case errors.Is(err, fs.ErrPermission):
		return config, fmt.Errorf("%w: the datastore of the local manxd is for root alone", err)
	case errors.Is(err, etcd.ErrNoLocal):
		return config, fmt.Errorf("no datastore is set, and %w: start manxd, or set --etcd-endpoints, ETCD_ENDPOINTS "+
			"or a file with --config", err)
	}
	return config, err
}

func (e *etcdFlags) fileOrEnv(env func(string) string) (etcd.Config, string, error) {
	raw, err := os.ReadFile(e.config)
	if errors.Is(err, fs.ErrNotExist) && e.config == defaultConfig {
		typ := env("CALICO_DATASTORE_TYPE")
		if typ == "" {
			typ = env("DATASTORE_TYPE")
		}
		return etcd.ConfigFromEnv(env), typ, nil
	}
	if err != nil {
		return etcd.Config{}, "", fmt.Errorf("configuration file: %w", err)
	}
	config, typ, err := parseConfig(raw)
	if err != nil {
		return config, "", fmt.Errorf("configuration file %s: %w", e.config, err)
	}
	return config, typ, nil
}

// apiConfig is the form of calicoctl's configuration file.
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

// kubernetesSpec are the fields that matter for a Kubernetes datastore only.
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

// unsupportedSpec are fields that would change which etcd is reached and how, so they must not be ignored.
type unsupportedSpec struct {
	EtcdDiscoverySrv string `json:"etcdDiscoverySrv"`
	EtcdKey          string `json:"etcdKey"`
	EtcdCert         string `json:"etcdCert"`
	EtcdCACert       string `json:"etcdCACert"`
}

func parseConfig(raw []byte) (etcd.Config, string, error) {
	var a apiConfig
	if err := yaml.UnmarshalStrict(raw, &a); err != nil {
		return etcd.Config{}, "", err
	}
	s := a.Spec
	switch {
	case a.APIVersion != model.APIVersion:
		return etcd.Config{}, "", fmt.Errorf("apiVersion is %q: want %q", a.APIVersion, model.APIVersion)
	case a.Kind != "CalicoAPIConfig":
		return etcd.Config{}, "", fmt.Errorf("kind is %q: want %q", a.Kind, "CalicoAPIConfig")
	case s.unsupportedSpec != unsupportedSpec{}:
		return etcd.Config{}, "", errors.New("etcdDiscoverySrv, etcdKey, etcdCert and etcdCACert are not supported: want etcdEndpoints, etcdKeyFile, etcdCertFile and etcdCACertFile")
	}
	return etcd.Config{
		Endpoints: etcd.SplitEndpoints(s.EtcdEndpoints),
		CAFile:    s.EtcdCAFile, CertFile: s.EtcdCertFile, KeyFile: s.EtcdKeyFile,
		Username: s.EtcdUsername, Password: s.EtcdPassword, PasswordFile: s.EtcdPasswordFile,
	}, s.DatastoreType, nil
}
