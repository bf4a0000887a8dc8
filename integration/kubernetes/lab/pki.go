package lab

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/manxnet/manx/integration/kubernetes/pki"
)

// The users of the API server other than nodes, with their groups. RBAC's own roles cover all of them.
var users = map[string]string{
	"admin":                          "system:masters",
	"system:kube-controller-manager": "",
	"system:kube-scheduler":          "",
	"system:kube-proxy":              "",
}

// credentials of a control plane: a certificate authority, the server's certificate, the key of service accounts, and a
// token for each user. All are files of dir.
type credentials struct {
	dir    string
	server string // URL
	ca     []byte // PEM
	tokens map[string]string
}

func newCredentials(dir, server string, addresses []net.IP, nodes []string) (*credentials, error) {
	c := &credentials{dir: dir, server: server, tokens: map[string]string{}}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	if err := c.certificates(addresses); err != nil {
		return nil, err
	}
	var lines strings.Builder
	for user, group := range users {
		c.token(&lines, user, group)
	}
	for _, n := range nodes {
		c.token(&lines, "system:node:"+n, "system:nodes")
	}
	return c, os.WriteFile(c.file("tokens.csv"), []byte(lines.String()), 0o600)
}

func (c *credentials) file(name string) string { return filepath.Join(c.dir, name) }

func (c *credentials) token(lines *strings.Builder, user, group string) {
	secret := make([]byte, 16)
	_, _ = rand.Read(secret)
	c.tokens[user] = hex.EncodeToString(secret)
	fmt.Fprintf(lines, "%s,%s,%s,%q\n", c.tokens[user], user, user, group)
}

func (c *credentials) certificates(addresses []net.IP) error {
	ca, err := pki.NewAuthority("lab")
	if err != nil {
		return err
	}
	c.ca = ca.PEM()
	cert, key, err := ca.Server("kube-apiserver", []string{"localhost", "kubernetes", "kubernetes.default",
		"kubernetes.default.svc", "kubernetes.default.svc.cluster.local"},
		append([]net.IP{net.IPv4(127, 0, 0, 1)}, addresses...))
	if err != nil {
		return err
	}
	private, public, err := pki.SigningKey()
	for name, text := range map[string][]byte{"ca.crt": c.ca, "server.crt": cert, "server.key": key, "sa.key": private,
		"sa.pub": public} {
		err = errors.Join(err, os.WriteFile(c.file(name), text, 0o600))
	}
	return err
}

// kubeconfig writes the file with which a user reaches the API server, and returns its path.
func (c *credentials) kubeconfig(user string) (string, error) {
	path := c.file("kubeconfig-" + strings.ReplaceAll(user, ":", "-"))
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: lab
clusters: [{name: lab, cluster: {server: %q, certificate-authority: %q}}]
users: [{name: lab, user: {token: %q}}]
contexts: [{name: lab, context: {cluster: lab, user: lab}}]
`, c.server, c.file("ca.crt"), c.tokens[user])
	return path, os.WriteFile(path, []byte(text), 0o600)
}
