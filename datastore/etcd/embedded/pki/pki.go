package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"
	"unicode"
)

// Names of the files of an authority, and of a client's files.
const (
	caFile         = "ca.crt"
	caKeyFile      = "ca.key"
	clientCertFile = "client.crt"
	clientKeyFile  = "client.key"
	maxName        = 64 // RFC 5280 appendix A.1, ub-common-name
)

// Certificates are valid from the beginning of time, and the authority's and the server's for ever: a host whose clock
// is not set yet must reach its cluster, too.
var (
	beginning = time.Unix(0, 0).UTC()
	noEnd     = time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC) // RFC 5280 section 4.1.2.5
)

// ErrMissing is the error of Read if there is no authority in the folder.
var ErrMissing = errors.New("there is no certificate authority")

// Authority signs certificates of servers and clients. Its key stays in its folder.
type Authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	// serverKey is the key of all certificates of ServerConfig. It lives as long as the process.
	serverKey *ecdsa.PrivateKey
}

// Open reads the authority in dir, or creates one with that common name and a random suffix. Only one process may open
// a folder at a time. A folder that others than its owner can enter, and damaged files, are errors: a new authority
// would lock out every client of the old one.
func Open(dir, name string) (*Authority, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("certificate authority: %w", err)
	}
	a, err := Read(dir)
	if !errors.Is(err, ErrMissing) {
		return a, err
	}
	key, err := readKey(filepath.Join(dir, caKeyFile))
	if errors.Is(err, fs.ErrNotExist) {
		key, err = newKey(filepath.Join(dir, caKeyFile))
	}
	if err != nil {
		return nil, fmt.Errorf("certificate authority: %w", err)
	}
	// A crash between the two files leaves a key without a certificate: nothing was signed yet.
	der, err := selfSign(key, name)
	if err != nil {
		return nil, fmt.Errorf("certificate authority: %w", err)
	}
	if err := writeFile(filepath.Join(dir, caFile), encode("CERTIFICATE", der)); err != nil {
		return nil, fmt.Errorf("certificate authority: %w", err)
	}
	return Read(dir)
}

// Read reads the authority in dir.
func Read(dir string) (*Authority, error) {
	if err := private(dir); err != nil {
		return nil, fmt.Errorf("certificate authority: %w", err)
	}
	certFile, keyFile := filepath.Join(dir, caFile), filepath.Join(dir, caKeyFile)
	cert, err := readCert(certFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w in %s", ErrMissing, dir)
	}
	if err != nil {
		return nil, fmt.Errorf("certificate authority: %w", err)
	}
	key, err := readKey(keyFile)
	if err != nil {
		return nil, fmt.Errorf("certificate authority: %w: restore it from a backup, or remove %s to begin with a new "+
			"authority, whose certificates all clients need", err, dir)
	}
	if !key.PublicKey.Equal(cert.PublicKey) {
		return nil, fmt.Errorf("certificate authority: %s is not the key of %s", keyFile, certFile)
	}
	serverKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	return &Authority{cert: cert, key: key, serverKey: serverKey}, nil
}

// PEM returns the certificate that verifies all certificates of the authority.
func (a *Authority) PEM() []byte { return encode("CERTIFICATE", a.cert.Raw) }

// Pool returns a pool with that certificate only.
func (a *Authority) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return pool
}

// ServerConfig returns the configuration of a server that admits only clients with a certificate of the authority. The
// server's certificate is created for each connection, with the address and the name that the client used, so it never
// expires and remains valid after a change of addresses.
func (a *Authority) ServerConfig() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		ClientAuth: tls.RequireAndVerifyClientCert,
		ClientCAs:  a.Pool(),
		NextProtos: []string{"h2"},
		// A resumed session would not verify the client's certificate again.
		SessionTicketsDisabled: true,
		GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
			return a.serverCertificate(serverNames(hello))
		},
	}
}

// serverNames returns the names of this host for a connecting client.
func serverNames(hello *tls.ClientHelloInfo) []string {
	names := []string{"localhost", "127.0.0.1", "::1"}
	if host, err := os.Hostname(); err == nil {
		names = append(names, host)
	}
	if hello.ServerName != "" {
		names = append(names, hello.ServerName)
	}
	if hello.Conn != nil {
		if local, err := netip.ParseAddrPort(hello.Conn.LocalAddr().String()); err == nil {
			names = append(names, local.Addr().Unmap().WithZone("").String())
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func (a *Authority) serverCertificate(names []string) (*tls.Certificate, error) {
	template := &x509.Certificate{
		Subject:     pkix.Name{CommonName: "server"},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	for _, name := range names {
		if ip := net.ParseIP(name); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, name)
		}
	}
	der, err := a.sign(template, a.serverKey, noEnd)
	if err != nil {
		return nil, err
	}
	return &tls.Certificate{Certificate: [][]byte{der, a.cert.Raw}, PrivateKey: a.serverKey}, nil
}

// IssueClient issues a client certificate with that common name, and returns it and its key as PEM.
func (a *Authority) IssueClient(name string, validFor time.Duration) (cert, key []byte, err error) {
	if err := checkName(name); err != nil {
		return nil, nil, err
	}
	if validFor <= 0 {
		return nil, nil, fmt.Errorf("a certificate for %s: want more", validFor)
	}
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	der, err := a.sign(&x509.Certificate{
		Subject:     pkix.Name{CommonName: name},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, private, time.Now().Add(validFor))
	if err != nil {
		return nil, nil, err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return nil, nil, err
	}
	return encode("CERTIFICATE", der), encode("PRIVATE KEY", keyDER), nil
}

// WriteClient creates the folder dir, which must not exist, with the files of a client of that name: the authority's
// certificate ca.crt, its own client.crt, and its key client.key. Only the owner may read them.
func (a *Authority) WriteClient(dir, name string, validFor time.Duration) error {
	cert, key, err := a.IssueClient(name, validFor)
	if err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	for _, f := range []struct {
		name    string
		content []byte
	}{{caFile, a.PEM()}, {clientCertFile, cert}, {clientKeyFile, key}} {
		if err := writeFile(filepath.Join(dir, f.name), f.content); err != nil {
			return err
		}
	}
	return nil
}

// sign sets the common fields of all certificates.
func (a *Authority) sign(template *x509.Certificate, key *ecdsa.PrivateKey, end time.Time) ([]byte, error) {
	template.NotBefore, template.NotAfter = beginning, end
	return x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
}

func selfSign(key *ecdsa.PrivateKey, name string) ([]byte, error) {
	suffix := make([]byte, 4)
	rand.Read(suffix) //nolint:errcheck // never fails
	template := &x509.Certificate{
		// Clients select by name among several authorities.
		Subject:   pkix.Name{CommonName: name + " " + hex.EncodeToString(suffix)},
		NotBefore: beginning, NotAfter: noEnd,
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	return x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
}

// checkName refuses an invalid client name.
func checkName(name string) error {
	if name == "" || len(name) > maxName {
		return fmt.Errorf("client name %q: want 1 to %d bytes", name, maxName)
	}
	for _, r := range name {
		if !unicode.IsPrint(r) || r == unicode.ReplacementChar {
			return fmt.Errorf("client name %q: want printable characters only", name)
		}
	}
	return nil
}
