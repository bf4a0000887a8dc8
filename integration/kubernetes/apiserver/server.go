package apiserver

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"

	"github.com/manxnet/manx/integration/kubernetes/pki"
	"github.com/manxnet/manx/integration/ports"
)

// version is the version of Kubernetes' programs.
const version = "v1.32.0"

// Admin is a user with all rights.
const Admin = "admin"

// patience bounds waits for the start of a program; test machines are slow.
const patience = 90 * time.Second

// Server is an etcd and a kube-apiserver with RBAC on loopback, which end with the test that started them.
type Server struct {
	// URL is where the API is served. Etcd is the URL of its etcd. Dir holds data, logs, certificates and tokens.
	URL, Etcd, Dir string
	// Flags are added to kube-apiserver's command line at its next start.
	Flags []string

	programs  string
	ca        *pki.Authority
	mu        sync.Mutex
	users     []string
	etcd, api *program
}

// Programs is the folder of Kubernetes' programs, which `make kubernetes-programs` fills.
func Programs() string {
	cache := os.Getenv("MANX_CACHE")
	if cache == "" {
		base := os.Getenv("XDG_CACHE_HOME")
		if base == "" {
			home, err := os.UserHomeDir()
			if err != nil {
				home = "/root"
			}
			base = filepath.Join(home, ".cache")
		}
		cache = filepath.Join(base, "manx")
	}
	return filepath.Join(cache, "kubernetes-"+version)
}

// Start runs a fresh cluster without nodes, with flags for kube-apiserver. It skips the test where programs are
// missing.
func Start(t testing.TB, flags ...string) *Server {
	t.Helper()
	return StartOn(t, "", flags...)
}

// StartOn is Start with an existing etcd, at a URL. The distribution's is too old for some features of kube-apiserver.
func StartOn(t testing.TB, etcd string, flags ...string) *Server {
	t.Helper()
	s := &Server{Dir: t.TempDir(), programs: Programs(), users: []string{Admin}, Flags: flags}
	if _, err := os.Stat(filepath.Join(s.programs, "kube-apiserver")); err != nil {
		t.Skipf("there is no kube-apiserver in %s: run `make kubernetes-programs`", s.programs)
	}
	if _, err := exec.LookPath("etcd"); err != nil && etcd == "" {
		t.Skip("no etcd program (Debian package etcd-server):", err)
	}
	local := func() string { return fmt.Sprintf("127.0.0.1:%d", ports.Free(t, "127.0.0.1")) }
	s.Etcd, s.URL = cmp.Or(etcd, "http://"+local()), "https://"+local()
	s.newCA(t)
	private, _, err := pki.SigningKey()
	if err != nil {
		t.Fatal(err)
	}
	write(t, s.file("sa.key"), private)
	t.Cleanup(s.kill)
	if etcd == "" {
		s.startEtcd(t, "http://"+local())
	}
	s.Restart(t)
	return s
}

func (s *Server) file(name string) string { return filepath.Join(s.Dir, name) }

func (s *Server) startEtcd(t testing.TB, peer string) {
	t.Helper()
	s.etcd = s.start(t, "etcd", "etcd", "--unsafe-no-fsync", "--data-dir", s.file("etcd"), "--log-level", "warn",
		"--listen-client-urls", s.Etcd, "--advertise-client-urls", s.Etcd,
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "default="+peer)
	s.waitFor(t, s.etcd, "etcd", s.Etcd+"/health", http.DefaultClient)
}

// start runs a program that logs into a file and ends with this process.
func (s *Server) start(t testing.TB, name, path string, args ...string) *program {
	t.Helper()
	log, err := os.OpenFile(s.file(name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close() //nolint:errcheck // the program has it
	cmd := exec.Command(path, args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	p, started := &program{ended: make(chan struct{})}, make(chan error, 1)
	go func() {
		defer close(p.ended)
		// The program ends with the thread that started it, which may be that of a goroutine in another namespace.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		p.Process = cmd.Process
		started <- err
		if err == nil {
			_ = cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	return p
}

// program is a running program.
type program struct {
	*os.Process
	ended chan struct{} // closed when it has ended
}

// waitFor waits for the response OK of a server.
func (s *Server) waitFor(t testing.TB, p *program, name, url string, client *http.Client) {
	t.Helper()
	var last error
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Do(req)
		if err == nil {
			resp.Body.Close() //nolint:errcheck // the status is enough
			if err = nil; resp.StatusCode == http.StatusOK {
				cancel()
				return
			}
			err = fmt.Errorf("%s answers %s", url, resp.Status)
		}
		cancel()
		last = err
		select {
		case <-p.ended:
			last = fmt.Errorf("it has ended (%w)", last)
		default:
			continue
		}
		break
	}
	log, _ := os.ReadFile(s.file(name + ".log"))
	lines := bytes.Split(log, []byte("\n"))
	t.Fatalf("%s does not start: %v\n%s", name, last, bytes.Join(lines[max(0, len(lines)-30):], []byte("\n")))
}

// Restart ends a running kube-apiserver and starts it with s.Flags and the tokens of all users of AddUsers.
func (s *Server) Restart(t testing.TB) {
	t.Helper()
	s.Stop()
	s.writeTokens(t)
	_, port, _ := net.SplitHostPort(strings.TrimPrefix(s.URL, "https://"))
	args := slices.Concat([]string{"--etcd-servers=" + s.Etcd, "--bind-address=127.0.0.1",
		"--advertise-address=127.0.0.1", "--secure-port=" + port,
		"--tls-cert-file=" + s.file("server.crt"), "--tls-private-key-file=" + s.file("server.key"),
		"--client-ca-file=" + s.file("ca.crt"), "--token-auth-file=" + s.file("tokens.csv"),
		"--authorization-mode=RBAC", "--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + s.file("sa.key"), "--service-account-signing-key-file=" + s.file("sa.key"),
		"--service-cluster-ip-range=10.96.0.0/16", "--allow-privileged=true", "--endpoint-reconciler-type=none",
		"--disable-admission-plugins=ServiceAccount", "--storage-media-type=application/vnd.kubernetes.protobuf",
	}, s.Flags)
	s.mu.Lock()
	s.api = s.start(t, "kube-apiserver", filepath.Join(s.programs, "kube-apiserver"), args...)
	s.mu.Unlock()
	client, err := rest.HTTPClientFor(s.Config(Admin))
	if err != nil {
		t.Fatal(err)
	}
	s.waitFor(t, s.api, "kube-apiserver", s.URL+"/readyz", client)
}

// Stop ends kube-apiserver, and leaves etcd.
func (s *Server) Stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	end(s.api)
	s.api = nil
}

// PID is the process ID of the running kube-apiserver.
func (s *Server) PID() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.api.Pid
}

// Freeze stops etcd, whose connections stay open and silent, until the returned function is called.
func (s *Server) Freeze(t testing.TB) (thaw func()) {
	t.Helper()
	if err := s.etcd.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	return func() { _ = s.etcd.Signal(unix.SIGCONT) }
}

// end ends a program with KILL: without its etcd, kube-apiserver takes long to end after TERM.
func end(p *program) {
	if p != nil {
		_ = p.Kill()
		<-p.ended
	}
}

func (s *Server) kill() {
	s.Stop()
	end(s.etcd)
}

// AddUsers adds users. Roles give them their rights. The server is restarted, because it reads its tokens only at its
// start. A user of the form "system:node:NAME" is in the group system:nodes.
func (s *Server) AddUsers(t testing.TB, users ...string) {
	t.Helper()
	for _, u := range users {
		if !slices.Contains(s.users, u) {
			s.users = append(s.users, u)
		}
	}
	s.Restart(t)
}

// Token returns the token of a user.
func Token(user string) string {
	return "token-of-" + strings.NewReplacer(":", "-", "/", "-").Replace(user)
}

func (s *Server) writeTokens(t testing.TB) {
	t.Helper()
	var b strings.Builder
	for _, u := range s.users {
		group := ""
		switch {
		case u == Admin:
			group = `,"system:masters"`
		case strings.HasPrefix(u, "system:node:"):
			group = `,"system:nodes"`
		case strings.HasPrefix(u, "system:serviceaccount:"):
			group = fmt.Sprintf(`,"system:serviceaccounts,system:serviceaccounts:%s"`, strings.Split(u, ":")[2])
		}
		fmt.Fprintf(&b, "%s,%s,%s%s\n", Token(u), u, u, group)
	}
	write(t, s.file("tokens.csv"), []byte(b.String()))
}

// CA returns the certificate of the server's authority.
func (s *Server) CA() []byte { return s.ca.PEM() }

// Config returns a user's configuration for the API. A user needs roles; see AddUsers.
func (s *Server) Config(user string) *rest.Config { return s.ConfigAt(s.URL, user) }

// ConfigAt returns a user's configuration for the API at another URL, such as that of a Line.
func (s *Server) ConfigAt(url, user string) *rest.Config {
	return &rest.Config{Host: url, BearerToken: Token(user), QPS: -1,
		TLSClientConfig: rest.TLSClientConfig{CAData: s.ca.PEM(), ServerName: "localhost"}}
}

// Kubeconfig writes a kubeconfig of a user and returns its path.
func (s *Server) Kubeconfig(t testing.TB, user string) string { return s.KubeconfigAt(t, s.URL, user) }

// KubeconfigAt writes a kubeconfig of a user for another URL, such as that of a Line.
func (s *Server) KubeconfigAt(t testing.TB, url, user string) string {
	t.Helper()
	return s.KubeconfigWith(t, url, Token(user))
}

// KubeconfigWith writes a kubeconfig with a token, such as one of AccountToken.
func (s *Server) KubeconfigWith(t testing.TB, url, token string) string {
	t.Helper()
	const user = "user"
	c := api.NewConfig()
	c.Clusters["test"] = &api.Cluster{Server: url, CertificateAuthorityData: s.ca.PEM(), TLSServerName: "localhost"}
	c.AuthInfos[user] = &api.AuthInfo{Token: token}
	c.Contexts["test"] = &api.Context{Cluster: "test", AuthInfo: user}
	c.CurrentContext = "test"
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*c, file); err != nil {
		t.Fatal(err)
	}
	return file
}

// AccountToken returns a token of a service account, which need not be in AddUsers. It is bound to a Node, which the
// API server then knows as the node of each request, as that of the token of a pod; or to none, if node is empty.
func (s *Server) AccountToken(t testing.TB, namespace, account, node string) string {
	t.Helper()
	spec := map[string]any{"expirationSeconds": 4 * 3600}
	if node != "" {
		spec["boundObjectRef"] = map[string]string{"kind": "Node", "apiVersion": "v1", "name": node}
	}
	raw := s.Request(t, http.MethodPost, "/api/v1/namespaces/"+namespace+"/serviceaccounts/"+account+"/token",
		map[string]any{"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec})
	var answer struct{ Status struct{ Token string } }
	if err := json.Unmarshal(raw, &answer); err != nil {
		t.Fatal(err)
	}
	return answer.Status.Token
}

// RotateCA restarts the server with a certificate of a new authority.
func (s *Server) RotateCA(t testing.TB) {
	t.Helper()
	s.newCA(t)
	s.Restart(t)
}

// newCA makes an authority and the server's certificate.
func (s *Server) newCA(t testing.TB) {
	t.Helper()
	ca, err := pki.NewAuthority("test CA")
	if err != nil {
		t.Fatal(err)
	}
	cert, key, err := ca.Server("kube-apiserver", []string{"localhost", "kubernetes.default.svc"},
		[]net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback})
	if err != nil {
		t.Fatal(err)
	}
	s.ca = ca
	write(t, s.file("server.crt"), cert)
	write(t, s.file("server.key"), key)
	write(t, s.file("ca.crt"), ca.PEM())
}

func write(t testing.TB, file string, content []byte) {
	t.Helper()
	if err := os.WriteFile(file, content, 0o600); err != nil {
		t.Fatal(err)
	}
}
