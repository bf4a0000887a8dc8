package lab

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// The users of the API server other than nodes, with their groups. RBAC's own roles know all of them.
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
	caKey, err := c.key("ca.key")
	if err != nil {
		return err
	}
	template := func(name string) *x509.Certificate {
		serial, _ := rand.Int(rand.Reader, big.NewInt(1<<62))
		return &x509.Certificate{SerialNumber: serial, Subject: pkix.Name{CommonName: name},
			NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().AddDate(1, 0, 0)}
	}
	authority := template("lab")
	authority.IsCA, authority.BasicConstraintsValid = true, true
	authority.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
	if c.ca, err = c.certificate("ca.crt", authority, authority, &caKey.PublicKey, caKey); err != nil {
		return err
	}
	key, err := c.key("server.key")
	if err != nil {
		return err
	}
	server := template("kube-apiserver")
	server.IPAddresses = append([]net.IP{net.IPv4(127, 0, 0, 1)}, addresses...)
	server.DNSNames = []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc",
		"kubernetes.default.svc.cluster.local"}
	server.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	if _, err := c.certificate("server.crt", server, authority, &key.PublicKey, caKey); err != nil {
		return err
	}
	accounts, err := c.key("sa.key")
	if err != nil {
		return err
	}
	public, err := x509.MarshalPKIXPublicKey(&accounts.PublicKey)
	if err != nil {
		return err
	}
	_, err = c.write("sa.pub", "PUBLIC KEY", public)
	return err
}

func (c *credentials) key(file string) (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, err
	}
	_, err = c.write(file, "EC PRIVATE KEY", der)
	return key, err
}

func (c *credentials) certificate(file string, template, parent *x509.Certificate, public *ecdsa.PublicKey,
	key *ecdsa.PrivateKey,
) ([]byte, error) {
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, key)
	if err != nil {
		return nil, err
	}
	return c.write(file, "CERTIFICATE", der)
}

func (c *credentials) write(file, kind string, der []byte) ([]byte, error) {
	text := pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
	return text, os.WriteFile(c.file(file), text, 0o600)
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
