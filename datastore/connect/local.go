package connect

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/etcd"
	"github.com/manxnet/manx/datastore/kubernetes"
	"github.com/manxnet/manx/datastore/safefile"
)

// localName is the file in manxd's run directory with its datastore settings, so that the other programs of this host
// need no settings.
const localName = "datastore.json"

// ErrNoLocal is the error of Open if no datastore is set and no manxd has written its settings.
var ErrNoLocal = errors.New("no manxd has recorded how it reaches the datastore")

// local is the content of the file. It contains no secret, only the names of files with secrets.
type local struct {
	Type         string   `json:"type,omitempty"` // empty for etcd
	Endpoints    []string `json:"endpoints"`
	CAFile       string   `json:"caFile,omitempty"`
	CertFile     string   `json:"certFile,omitempty"`
	KeyFile      string   `json:"keyFile,omitempty"`
	Username     string   `json:"username,omitempty"`
	PasswordFile string   `json:"passwordFile,omitempty"`

	Kubernetes *localKubernetes `json:"kubernetes,omitempty"`
}

// localKubernetes configures access to the Kubernetes API. It omits a token or a kubeconfig that is in no file.
type localKubernetes struct {
	Kubeconfig string `json:"kubeconfig,omitempty"`
	Context    string `json:"context,omitempty"`
	Endpoint   string `json:"endpoint,omitempty"`
	CAFile     string `json:"caFile,omitempty"`
	CertFile   string `json:"certFile,omitempty"`
	KeyFile    string `json:"keyFile,omitempty"`
	TokenFile  string `json:"tokenFile,omitempty"`
	Insecure   bool   `json:"insecure,omitempty"`
	UsePodCIDR bool   `json:"usePodCIDR,omitempty"`
	Group      string `json:"group,omitempty"`
	Prefix     string `json:"interfacePrefix,omitempty"`
}

func fromKubernetes(c kubernetes.Config) *localKubernetes {
	var files []string
	for _, file := range filepath.SplitList(c.Kubeconfig) {
		files = append(files, absolute(file))
	}
	return &localKubernetes{Kubeconfig: strings.Join(files, string(filepath.ListSeparator)), Context: c.Context,
		Endpoint: c.Endpoint, CAFile: absolute(c.CAFile), CertFile: absolute(c.CertFile), KeyFile: absolute(c.KeyFile),
		TokenFile: absolute(c.TokenFile), Insecure: c.Insecure, UsePodCIDR: c.UsePodCIDR, Group: c.Group,
		Prefix: c.InterfacePrefix}
}

func (l *localKubernetes) config() kubernetes.Config {
	if l == nil {
		return kubernetes.Config{}
	}
	return kubernetes.Config{Kubeconfig: l.Kubeconfig, Context: l.Context, Endpoint: l.Endpoint, CAFile: l.CAFile,
		CertFile: l.CertFile, KeyFile: l.KeyFile, TokenFile: l.TokenFile, Insecure: l.Insecure,
		UsePodCIDR: l.UsePodCIDR, Group: l.Group, InterfacePrefix: l.Prefix}
}

// WriteLocal writes the datastore settings to manxd's run directory for the other programs of this host. It omits a
// password that is in no file.
func WriteLocal(runDir string, s Settings) error {
	c := s.Etcd
	l := local{Endpoints: c.Endpoints,
		CAFile: absolute(c.CAFile), CertFile: absolute(c.CertFile), KeyFile: absolute(c.KeyFile)}
	if c.PasswordFile != "" {
		l.Username, l.PasswordFile = c.Username, absolute(c.PasswordFile)
	}
	if s.Type != Etcd && s.Type != Embedded {
		l.Type = s.Type
	}
	if s.Type == Kubernetes {
		l.Kubernetes = fromKubernetes(s.Kube)
	}
	content, err := json.Marshal(l)
	if err != nil {
		return err
	}
	return safefile.Replace(filepath.Join(runDir, localName), append(content, '\n'), 0o600)
}

// ReadLocal returns the datastore settings of the manxd with that run directory, with the user of set if it has one.
func ReadLocal(runDir string, set Settings) (Settings, error) {
	file := filepath.Join(runDir, localName)
	content, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return Settings{}, fmt.Errorf("%w: there is no %s", ErrNoLocal, file)
	}
	if err != nil {
		return Settings{}, err
	}
	var l local
	if err := json.Unmarshal(content, &l); err != nil { // fields that a newer manxd adds are no error
		return Settings{}, fmt.Errorf("%s: %w", file, err)
	}
	c := etcd.Config{Endpoints: l.Endpoints, CAFile: l.CAFile, CertFile: l.CertFile, KeyFile: l.KeyFile,
		Username: l.Username, PasswordFile: l.PasswordFile}
	if u := set.Etcd; u.Username != "" {
		c.Username, c.Password, c.PasswordFile = u.Username, u.Password, u.PasswordFile
	}
	return Settings{Type: l.Type, Etcd: c, Kube: l.Kubernetes.config()}, nil
}

// absolute makes a path independent of the working directory.
func absolute(path string) string {
	if path == "" {
		return ""
	}
	if abs, err := filepath.Abs(path); err == nil {
		return abs
	}
	return path
}

// resolve applies the priorities of the settings.
func (s Settings) resolve() (Settings, error) {
	s.Kube = s.Kube.With(s.OverKube)
	switch {
	case s.Type == "" && s.OverKube.Set():
		s.Type = Kubernetes
	case s.usesLocal():
		local, err := ReadLocal(s.RunDir, s)
		switch {
		case errors.Is(err, fs.ErrPermission):
			return s, fmt.Errorf("%w: the datastore of the local manxd is for root alone", err)
		case errors.Is(err, ErrNoLocal) && (s.Type == Kubernetes || s.Type == "" && s.Kube.OfUser().Set()):
			s.Type = Kubernetes
		case err != nil:
			return s, err
		case s.Type != Kubernetes || local.Type == Kubernetes:
			s.Type, s.Etcd, s.Kube = local.Type, local.Etcd, local.Kube
		}
	}
	s.Etcd = s.Etcd.With(s.Over)
	return s, nil
}

// usesLocal reports whether the settings select the local manxd's datastore: no other is set.
func (s Settings) usesLocal() bool {
	if !usable(s.Type) || s.RunDir == "" {
		return false
	}
	if s.Type == Kubernetes {
		return !s.Kube.Set()
	}
	return len(s.Etcd.Endpoints) == 0 && len(s.Over.Endpoints) == 0
}

// hint explains an error of Open if the settings have the address where older versions of manxd served their embedded
// datastore, and the local manxd serves it elsewhere now. It returns any other error unchanged.
func (s Settings) hint(err error) error {
	endpoints := s.Etcd.Endpoints
	if !errors.Is(err, datastore.ErrUnavailable) || s.RunDir == "" || len(endpoints) != 1 {
		return err
	}
	if strings.TrimSuffix(strings.TrimPrefix(strings.TrimPrefix(endpoints[0], "http://"), "https://"),
		"/") != oldListen {
		return err
	}
	now, localErr := ReadLocal(s.RunDir, Settings{})
	if localErr != nil || len(now.Etcd.Endpoints) == 0 || now.Etcd.Endpoints[0] == endpoints[0] {
		return err
	}
	return fmt.Errorf("%w. The local manxd does not serve its datastore there any more: "+
		"leave the endpoint out to use the manxd's own", err)
}

// oldListen is the address of the embedded datastore in versions that served it to every user of the host.
const oldListen = "127.0.0.1:2379"
