package etcd

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"time"
)

// Config says how to reach etcd. All Calico data is below /calico/; there is no other prefix.
type Config struct {
	// Endpoints are URLs (http://10.0.0.1:2379, https://..., unix:///path/of/socket) or HOST:PORT.
	Endpoints []string
	// PEM files. CAFile verifies the server; CertFile and KeyFile are our own certificate, both or none.
	CAFile, CertFile, KeyFile string
	// Username and Password are used only if both are set.
	Username, Password string
	// RequestTimeout bounds each request whose context has no deadline; 10 s if zero.
	RequestTimeout time.Duration
}

// ConfigFromEnv reads Calico's environment names, each of which may carry the prefix CALICO_, which takes priority.
// getenv is usually os.Getenv.
func ConfigFromEnv(getenv func(string) string) Config {
	get := func(name string) string {
		if v := getenv("CALICO_" + name); v != "" {
			return v
		}
		return getenv(name)
	}
	return Config{
		Endpoints: SplitEndpoints(get("ETCD_ENDPOINTS")),
		CAFile:    get("ETCD_CA_CERT_FILE"),
		CertFile:  get("ETCD_CERT_FILE"),
		KeyFile:   get("ETCD_KEY_FILE"),
		Username:  get("ETCD_USERNAME"),
		Password:  get("ETCD_PASSWORD"),
	}
}

// SplitEndpoints reads a comma-separated list of endpoints.
func SplitEndpoints(s string) []string {
	var endpoints []string
	for e := range strings.SplitSeq(s, ",") {
		if e = strings.TrimSpace(e); e != "" {
			endpoints = append(endpoints, e)
		}
	}
	return endpoints
}

// check refuses what cannot work, before anything is dialled.
func (c Config) check() error {
	if len(c.Endpoints) == 0 {
		return errors.New("etcd endpoints are missing: set --etcd-endpoints or ETCD_ENDPOINTS, for instance http://10.0.0.1:2379")
	}
	schemes := map[string]string{}
	for _, e := range c.Endpoints {
		scheme, host := splitEndpoint(e)
		schemes[scheme] = e
		switch scheme {
		case "unix":
			continue
		case "http", "https", "":
		default:
			return fmt.Errorf("etcd endpoint %q: scheme %q: want http or https", e, scheme)
		}
		u, err := url.Parse("x://" + host)
		if err != nil || u.Hostname() == "" || u.Port() == "" || u.Path != "" {
			return fmt.Errorf("etcd endpoint %q: want http://HOST:PORT or https://HOST:PORT", e)
		}
	}
	if len(schemes) > 1 {
		return fmt.Errorf("etcd endpoints %q: all must begin with http://, or all with https://", c.Endpoints)
	}
	if plain := schemes["http"]; plain != "" && (c.CAFile != "" || c.CertFile != "" || c.KeyFile != "") {
		return fmt.Errorf("etcd endpoint %q is not encrypted, but TLS files are given: want https://", plain)
	}
	if (c.CertFile == "") != (c.KeyFile == "") {
		return fmt.Errorf("etcd client certificate file %q and key file %q: want both or none", c.CertFile, c.KeyFile)
	}
	if (c.Username == "") != (c.Password == "") {
		return errors.New("etcd user name and password: want both or none")
	}
	return nil
}

// splitEndpoint takes "https://host:port" apart; the scheme may be absent.
func splitEndpoint(e string) (scheme, host string) {
	if scheme, host, ok := strings.Cut(e, "://"); ok {
		return scheme, strings.TrimSuffix(host, "/")
	}
	return "", e
}

// secure tells whether the endpoints are spoken to over TLS.
func (c Config) secure() bool {
	scheme, _ := splitEndpoint(c.Endpoints[0])
	return scheme == "https" || scheme == "" && (c.CAFile != "" || c.CertFile != "")
}

// tlsConfig reads the TLS files; nil if the endpoints are not encrypted.
func (c Config) tlsConfig() (*tls.Config, error) {
	if !c.secure() {
		return nil, nil
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.CAFile != "" {
		pool, err := ReadCA(c.CAFile)
		if err != nil {
			return nil, err
		}
		config.RootCAs = pool
	}
	if c.CertFile != "" {
		cert, err := ReadKeyPair(c.CertFile, c.KeyFile)
		if err != nil {
			return nil, err
		}
		config.Certificates = []tls.Certificate{cert}
	}
	return config, nil
}

// ReadCA reads a file of PEM certificates.
func ReadCA(file string) (*x509.CertPool, error) {
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("etcd CA certificate file: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("etcd CA certificate file %s holds no PEM certificate", file)
	}
	return pool, nil
}

// ReadKeyPair reads a certificate and its key from PEM files; the error names the file that is wrong.
func ReadKeyPair(certFile, keyFile string) (tls.Certificate, error) {
	for what, file := range map[string]string{"certificate": certFile, "key": keyFile} {
		if _, err := os.ReadFile(file); err != nil {
			return tls.Certificate{}, fmt.Errorf("etcd %s file: %w", what, err)
		}
	}
	cert, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("etcd certificate file %s with key file %s: %w", certFile, keyFile, err)
	}
	return cert, nil
}
