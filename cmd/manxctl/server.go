package main

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
)

// serverFlags configure access to the daemon of another host. A flag takes priority over the environment.
type serverFlags struct {
	address, caFile, certFile, keyFile, serverName string
}

func (s *serverFlags) add(f *pflag.FlagSet) {
	f.StringVar(&s.address, "server", "", "HOST:PORT of a manxd with --control-listen, instead of the local one "+
		"(MANXCTL_SERVER)")
	f.StringVar(&s.caFile, "ca-file", "", "with --server: CA that signs the daemon's certificate (MANXCTL_CA_FILE)")
	f.StringVar(&s.certFile, "cert-file", "", "with --server: the certificate to call with (MANXCTL_CERT_FILE)")
	f.StringVar(&s.keyFile, "key-file", "", "with --server: its key (MANXCTL_KEY_FILE)")
	f.StringVar(&s.serverName, "tls-server-name", "",
		"with --server: the name to expect in the daemon's certificate, if not HOST (MANXCTL_TLS_SERVER_NAME)")
}

// remote returns the access to the daemon of another host, nil for the local one.
func (c *cli) remote() (*serverFlags, error) {
	given := c.server != serverFlags{}
	if c.socketFlag != nil && c.socketFlag.Changed {
		if given {
			return nil, usagef("--socket is for the local manxd: it does not go with --server and its files")
		}
		return nil, nil
	}
	s := serverFlags{
		address:    cmp.Or(c.server.address, c.env("MANXCTL_SERVER")),
		caFile:     cmp.Or(c.server.caFile, c.env("MANXCTL_CA_FILE")),
		certFile:   cmp.Or(c.server.certFile, c.env("MANXCTL_CERT_FILE")),
		keyFile:    cmp.Or(c.server.keyFile, c.env("MANXCTL_KEY_FILE")),
		serverName: cmp.Or(c.server.serverName, c.env("MANXCTL_TLS_SERVER_NAME")),
	}
	if s.address == "" {
		if given {
			return nil, usagef("--ca-file, --cert-file, --key-file and --tls-server-name go with --server")
		}
		return nil, nil
	}
	if _, _, err := net.SplitHostPort(s.address); err != nil {
		return nil, usagef("--server %q: want HOST:PORT, an IPv6 address in brackets", s.address)
	}
	for _, f := range []struct{ name, value string }{{"ca-file", s.caFile}, {"cert-file", s.certFile},
		{"key-file", s.keyFile}} {
		if f.value == "" {
			return nil, usagef("--server needs --%s", f.name)
		}
	}
	return &s, nil
}

// options returns the options of a connection to the daemon.
func (s *serverFlags) options() ([]grpc.DialOption, error) {
	pem, err := os.ReadFile(s.caFile)
	if err != nil {
		return nil, fmt.Errorf("--ca-file: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("--ca-file %s has no certificate in PEM", s.caFile)
	}
	pair, err := tls.LoadX509KeyPair(s.certFile, s.keyFile)
	if err != nil {
		return nil, fmt.Errorf("--cert-file and --key-file: %w", err)
	}
	host, _, err := net.SplitHostPort(s.address)
	if err != nil {
		return nil, err
	}
	config := &tls.Config{
		MinVersion: tls.VersionTLS13, RootCAs: roots, ServerName: cmp.Or(s.serverName, host),
		// Whatever its issuer: the daemon's refusal is a better error than a missing certificate.
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil },
	}
	return []grpc.DialOption{
		grpc.WithTransportCredentials(credentials.NewTLS(config)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 30 * time.Second, Timeout: 20 * time.Second}),
	}, nil
}

// explain returns the cause of a connection error, given gRPC's message.
func (s *serverFlags) explain(message string) string {
	for _, x := range []struct{ part, words string }{
		{"tls: expired certificate", "it does not accept the certificate in " + s.certFile + ", " + s.validity()},
		{"tls: unknown certificate authority",
			"it does not accept the certificate in " + s.certFile + ": no CA in its --control-ca-file signed it"},
		{"tls: certificate required", "it wants a certificate, and was shown none"},
		{"remote error: tls: bad certificate",
			"it does not accept the certificate in " + s.certFile + ": it may not be for clients (extended key usage)"},
		{"certificate signed by unknown authority", "its certificate was not signed by a CA in " + s.caFile},
		{"certificate has expired or is not yet valid", "its certificate has expired, or is not valid yet"},
		{"doesn't contain any IP SANs", "its certificate does not name this address: call it by a name that the " +
			"certificate has, or give that with --tls-server-name"},
		{"certificate is valid for", "its certificate names another host: call it by a name that the certificate " +
			"has, or give that with --tls-server-name"},
		{"first record does not look like a TLS handshake",
			"the program there does not speak TLS: is it the port of --control-listen?"},
		{"error reading server preface: EOF",
			"it closed the connection: there may be too many of this host; its log has the reason"},
		{"connection refused", "no program listens there: is manxd running there, with --control-listen?"},
	} {
		if strings.Contains(message, x.part) {
			if at := strings.Index(message, "x509: "); at >= 0 {
				return x.words + " (" + strings.TrimSuffix(message[at:], "\"") + ")"
			}
			return x.words
		}
	}
	return message
}

// validity returns the period of validity of the own certificate.
func (s *serverFlags) validity() string {
	pair, err := tls.LoadX509KeyPair(s.certFile, s.keyFile)
	if err != nil || pair.Leaf == nil {
		return "which has expired, or is not valid yet"
	}
	return fmt.Sprintf("which is valid from %s to %s", pair.Leaf.NotBefore.UTC().Format(time.RFC3339),
		pair.Leaf.NotAfter.UTC().Format(time.RFC3339))
}
