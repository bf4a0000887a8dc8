package kubernetes

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
)

// Config configures access to the Kubernetes API. Tokens, certificates, keys and authorities may be rotated while a
// program runs: their files and the kubeconfig are read again when the server refuses the previous ones.
type Config struct {
	// Kubeconfig is the path of a kubeconfig, or several separated by colons, which are merged. Inline is the content
	// of one and replaces it. Context selects one of its contexts, if not the current one.
	Kubeconfig, Inline, Context string
	// Endpoint is the URL of the API. It and the following fields, where set, take priority over the kubeconfig.
	Endpoint                  string
	CAFile, CertFile, KeyFile string
	Token, TokenFile          string
	Insecure                  bool // the server's certificate is not verified
	// UserAgent is the User-Agent, as UserAgent returns it; empty for the executable's name.
	UserAgent string
	// QPS limits requests per second, Burst concurrent ones. Without QPS there is no limit: the server protects itself
	// (API priority and fairness), and its Retry-After is followed.
	QPS   float32
	Burst int
	// UsePodCIDR is set if another plugin takes pods' addresses from the node's pod CIDR, so that there is no IPAM.
	// These CIDRs are then the node's blocks, and BlockAffinities can only be read.
	UsePodCIDR bool
	// Group is the API group of custom resources: "crd.projectcalico.org/v1" or "projectcalico.org/v3"; empty to detect
	// it.
	Group string
	// InterfacePrefix is the prefix of pods' host interface names; "cali" if empty.
	InterfacePrefix string
	// Node is the node of a program that keeps the pods of other nodes reduced. A watch follows that node's pods apart
	// from the others, and of the others leaves out versions that differ only in fields that nobody keeps. If it is
	// empty, a watch delivers every version of every pod, in one order.
	Node string
	// Follows is set by a program that watches numerous kinds soon: Open begins to test whether the server can begin a
	// watch with all objects, on which their first reads depend.
	Follows bool
	// Moved, which may be nil, is called once when the objects of a Group that was detected have been migrated to the
	// other group: it gets the reason to open the datastore again. What is open goes on with the group.
	Moved func(why string)
	// MigrationInterval is the shortest interval between reads of an existing migration, and half of the longest one:
	// so nodes that open the datastore again do not all do so at once. 30 s if zero.
	MigrationInterval time.Duration
	// LeaseNamespace is the namespace of the elections' Leases; empty: the namespace of this pod, or kube-system.
	LeaseNamespace string
	// LeaseTTL is the time after the end of a leader that did not resign until another candidate can lead, in whole
	// seconds; 15 s if zero.
	LeaseTTL time.Duration
	// Requested, which may be nil, is called for each request, with its verb (the method in lower case, or watch) and
	// the HTTP status, or error if there is no response. It may be called concurrently.
	Requested func(verb, code string)
	// Rewatched, which may be nil, is called for each watch that begins again after it had ended. It may be called
	// concurrently.
	Rewatched func()
	// Log receives responses of the server that are not followed exactly; may be nil.
	Log *zap.Logger
}

// ErrNoKubernetes is the error of REST if no setting names a Kubernetes API and this process does not run in a pod.
var ErrNoKubernetes = errors.New("no Kubernetes API is known: set KUBECONFIG or K8S_API_ENDPOINT")

// ConfigFromEnv reads Calico's environment variables. A variable with the prefix CALICO_ takes priority. REST reports
// malformed values. getenv is usually os.Getenv.
func ConfigFromEnv(getenv func(string) string) Config {
	get := func(name string) string {
		if v := getenv("CALICO_" + name); v != "" {
			return v
		}
		return getenv(name)
	}
	qps, _ := strconv.ParseFloat(get("K8S_CLIENT_QPS"), 32)
	burst, _ := strconv.Atoi(get("K8S_CLIENT_BURST"))
	prefix, _, _ := strings.Cut(getenv("FELIX_INTERFACEPREFIX"), ",")
	return Config{
		Kubeconfig: get("KUBECONFIG"), Context: get("K8S_CURRENT_CONTEXT"), Endpoint: get("K8S_API_ENDPOINT"),
		CAFile: get("K8S_CA_FILE"), CertFile: get("K8S_CERT_FILE"), KeyFile: get("K8S_KEY_FILE"),
		Token:    get("K8S_API_TOKEN"),
		Insecure: isTrue(get("K8S_INSECURE_SKIP_TLS_VERIFY")), UsePodCIDR: isTrue(get("USE_POD_CIDR")),
		QPS: float32(qps), Burst: burst,
		Group: getenv("CALICO_API_GROUP"), InterfacePrefix: prefix,
	}
}

func isTrue(s string) bool {
	b, err := strconv.ParseBool(s)
	return err == nil && b
}

// Set reports whether a setting names a Kubernetes API.
func (c Config) Set() bool { return c.Kubeconfig != "" || c.Inline != "" || c.Endpoint != "" }

// With returns c with the fields that are set in o.
func (c Config) With(o Config) Config {
	for _, s := range []struct {
		to   *string
		from string
	}{
		{&c.Kubeconfig, o.Kubeconfig}, {&c.Inline, o.Inline}, {&c.Context, o.Context}, {&c.Endpoint, o.Endpoint},
		{&c.CAFile, o.CAFile}, {&c.CertFile, o.CertFile}, {&c.KeyFile, o.KeyFile}, {&c.Token, o.Token},
		{&c.TokenFile, o.TokenFile}, {&c.Group, o.Group}, {&c.UserAgent, o.UserAgent},
	} {
		if s.from != "" {
			*s.to = s.from
		}
	}
	if o.Kubeconfig != "" {
		c.Inline = ""
	}
	c.Insecure = c.Insecure || o.Insecure
	return c
}

// Warnings lists unsafe settings.
func (c Config) Warnings(time.Time) (list []string) {
	r, err := c.OfUser().REST()
	switch {
	case err != nil: // the error of Open
	case r.Insecure:
		list = append(list, "the certificate of the Kubernetes API is not verified: whoever is on the way to "+
			"it can read "+
			"and change everything")
	case strings.HasPrefix(r.Host, "http://"):
		list = append(list, "the Kubernetes API is reached without TLS: whoever is on the way to it can read "+
			"and change "+
			"everything")
	}
	return list
}

// OfUser returns c with the user's kubeconfig, ~/.kube/config, if nothing else is set and the file exists, as Calico's
// programs do.
func (c Config) OfUser() Config {
	if c.Set() {
		return c
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return c
	}
	file := filepath.Join(home, ".kube", "config")
	if _, err := os.Stat(file); err == nil {
		c.Kubeconfig = file
	}
	return c
}

// defaultBurst is the number of concurrent requests if only QPS is set, as in Calico.
const defaultBurst = 100

// REST returns client-go's settings for the API; without any setting those of a pod in the cluster. The error Is
// ErrNoKubernetes if there are neither.
func (c Config) REST() (*rest.Config, error) {
	r, err := c.load()
	if err != nil {
		return nil, err
	}
	r.QPS, r.Burst = -1, 0
	if c.QPS > 0 {
		r.QPS, r.Burst = c.QPS, defaultBurst
		if c.Burst > 0 {
			r.Burst = c.Burst
		}
	}
	r.UserAgent = cmp.Or(c.UserAgent, UserAgent("", ""))
	r.Wrap(renewal(rest.CopyConfig(r), c.load))
	if c.Requested != nil {
		r.Wrap(func(next http.RoundTripper) http.RoundTripper { return counting{next, c.Requested} })
	}
	r.Wrap(throttling(c.Log))
	return r, nil
}

func (c Config) load() (*rest.Config, error) {
	if !c.Set() {
		r, err := rest.InClusterConfig()
		if errors.Is(err, rest.ErrNotInCluster) {
			return nil, ErrNoKubernetes
		}
		if err != nil {
			return nil, fmt.Errorf("the Kubernetes API of this pod: %w", err)
		}
		return r, nil
	}
	r, err := c.merged()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.name(), err)
	}
	if r.Host == "" {
		return nil, fmt.Errorf("%s names no server", c.name())
	}
	return r, nil
}

// name names the settings, for messages.
func (c Config) name() string {
	switch {
	case c.Inline != "":
		return "the inline kubeconfig"
	case c.Kubeconfig != "":
		return "kubeconfig " + c.Kubeconfig
	}
	return "Kubernetes API " + c.Endpoint
}

// Namespace returns the namespace of the kubeconfig's context; empty if it names none, or cannot be read.
func (c Config) Namespace() string {
	if !c.Set() {
		return ""
	}
	k, err := c.client()
	if err != nil {
		return ""
	}
	namespace, given, err := k.Namespace()
	if err != nil || !given && namespace == "default" {
		return ""
	}
	return namespace
}

// merged returns the kubeconfig merged with the other settings.
func (c Config) merged() (*rest.Config, error) {
	k, err := c.client()
	if err != nil {
		return nil, err
	}
	return k.ClientConfig()
}

func (c Config) client() (clientcmd.ClientConfig, error) {
	over := &clientcmd.ConfigOverrides{CurrentContext: c.Context, ClusterInfo: api.Cluster{
		Server: c.Endpoint, CertificateAuthority: c.CAFile, InsecureSkipTLSVerify: c.Insecure,
	}, AuthInfo: api.AuthInfo{
		ClientCertificate: c.CertFile, ClientKey: c.KeyFile, Token: c.Token, TokenFile: c.TokenFile,
	}}
	if c.Inline != "" {
		parsed, err := clientcmd.Load([]byte(c.Inline))
		if err != nil {
			return nil, err
		}
		return clientcmd.NewDefaultClientConfig(*parsed, over), nil
	}
	rules := &clientcmd.ClientConfigLoadingRules{}
	for _, file := range filepath.SplitList(c.Kubeconfig) {
		if _, err := os.Stat(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		rules.Precedence = append(rules.Precedence, file)
	}
	if len(rules.Precedence) == 1 {
		rules = &clientcmd.ClientConfigLoadingRules{ExplicitPath: rules.Precedence[0]}
	}
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, over), nil
}
