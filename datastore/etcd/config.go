package etcd

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/manxnet/manx/datastore/safefile"
)

// Config configures access to etcd. All Calico data is below /calico/; no other prefix is supported.
type Config struct {
	// Endpoints are URLs (http://10.0.0.1:2379, https://..., unix:///path/of/socket) or HOST:PORT.
	Endpoints []string
	// PEM files. CAFile verifies the server; CertFile and KeyFile are the client certificate, both or none, and are
	// read again for each connection.
	CAFile, CertFile, KeyFile string
	// Username and Password are used only if both are set. PasswordFile holds the password in place of Password.
	Username, Password, PasswordFile string
	// RequestTimeout bounds each request whose context has no deadline; 10 s if zero.
	RequestTimeout time.Duration
	// LeaseTTL is the time after the end of a leader that did not resign until another candidate can lead, in whole
	// seconds; 15 s if zero. etcd may raise it to one and a half of its own election timeout.
	LeaseTTL time.Duration
	// Rewatched, which may be nil, is called for each watch that begins again after it had ended. It may be called
	// concurrently.
	Rewatched func() `json:"-"`
}

// ConfigFromEnv reads Calico's environment variables. A variable with the prefix CALICO_ takes priority. getenv is
// usually os.Getenv.
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

		PasswordFile: get("ETCD_PASSWORD_FILE"),
	}
}

// With returns c with the fields that are set in o. A password or password file of o replaces either.
func (c Config) With(o Config) Config {
	if o.Password != "" || o.PasswordFile != "" {
		c.Password, c.PasswordFile = "", ""
	}
	for _, s := range []struct {
		to   *string
		from string
	}{
		{&c.CAFile, o.CAFile}, {&c.CertFile, o.CertFile}, {&c.KeyFile, o.KeyFile},
		{&c.Username, o.Username}, {&c.Password, o.Password}, {&c.PasswordFile, o.PasswordFile},
	} {
		if s.from != "" {
			*s.to = s.from
		}
	}
	if len(o.Endpoints) > 0 {
		c.Endpoints = o.Endpoints
	}
	return c
}

// SplitEndpoints splits a comma-separated list of endpoints.
func SplitEndpoints(s string) []string {
	var endpoints []string
	for e := range strings.SplitSeq(s, ",") {
		if e = strings.TrimSpace(e); e != "" {
			endpoints = append(endpoints, e)
		}
	}
	return endpoints
}

// check refuses invalid settings before the connection.
func (c Config) check() error {
	if len(c.Endpoints) == 0 {
		return errors.New("etcd endpoints are missing: set --etcd-endpoints or ETCD_ENDPOINTS, for instance " +
			"http://10.0.0.1:2379")
	}
	for _, e := range c.Endpoints { // before any message that has an endpoint
		scheme, host := splitEndpoint(e)
		if at := strings.LastIndexByte(host, '@'); at >= 0 && scheme != "unix" {
			// Not even the host is named: a comma in the password would make a part of it a host.
			return errors.New("an etcd endpoint has a user or a password: there are settings of their own for these")
		}
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
	if c.Password != "" && c.PasswordFile != "" {
		return fmt.Errorf("etcd password and password file %s: want one of them", c.PasswordFile)
	}
	if (c.Username == "") != (c.Password == "" && c.PasswordFile == "") {
		return errors.New("etcd user name and password (or password file): want both or none")
	}
	return nil
}

// splitEndpoint splits "https://host:port"; the scheme may be absent.
func splitEndpoint(e string) (scheme, host string) {
	if scheme, host, ok := strings.Cut(e, "://"); ok {
		return scheme, strings.TrimSuffix(host, "/")
	}
	return "", e
}

// secure reports whether the endpoints use TLS.
func (c Config) secure() bool {
	scheme, _ := splitEndpoint(c.Endpoints[0])
	return scheme == "https" || scheme == "" && (c.CAFile != "" || c.CertFile != "")
}

// tlsConfig reads the TLS files; it returns nil if the endpoints are not encrypted.
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

// maxPassword exceeds the length of every password.
const maxPassword = 4096

// password returns the password, from its file if there is one: the content without the line end.
func (c Config) password() (string, error) {
	if c.PasswordFile == "" {
		return c.Password, nil
	}
	f, err := os.Open(c.PasswordFile)
	if err != nil {
		return "", fmt.Errorf("etcd password file: %w", safefile.Refused(err))
	}
	defer f.Close()
	content, err := io.ReadAll(io.LimitReader(f, maxPassword+1))
	if err != nil {
		return "", fmt.Errorf("etcd password file: %w", err)
	}
	password := strings.TrimRight(string(content), "\r\n")
	switch {
	case strings.TrimSpace(password) == "":
		return "", fmt.Errorf("etcd password file %s is empty", c.PasswordFile)
	case len(content) > maxPassword:
		return "", fmt.Errorf("etcd password file %s has more than %d bytes", c.PasswordFile, maxPassword)
	case strings.ContainsAny(password, "\r\n"):
		return "", fmt.Errorf("etcd password file %s has more than one line", c.PasswordFile)
	}
	return password, nil
}

// Warnings returns a sentence for each unsafe or expiring setting: a password that others on the network or on this
// host can read, a client certificate that expires within 30 days.
func (c Config) Warnings(now time.Time) (warnings []string) {
	warn := func(format string, args ...any) { warnings = append(warnings, fmt.Sprintf(format, args...)) }
	for _, e := range c.Endpoints {
		if scheme, _ := splitEndpoint(e); c.Username != "" && scheme != "unix" && !c.secure() {
			warn(
				"the password of etcd user %s goes over %s unencrypted: everybody on the way can read it, use https://",
				c.Username, e)
			break
		}
	}
	if st, err := os.Stat(c.PasswordFile); c.PasswordFile != "" && err == nil && st.Mode().Perm()&0o007 != 0 {
		warn("every user of this host can read etcd password file %s (mode %#o): want mode 0600",
			c.PasswordFile, st.Mode().Perm())
	}
	if c.CertFile == "" {
		return warnings
	}
	cert, err := ReadKeyPair(c.CertFile, c.KeyFile)
	if err == nil && cert.Leaf != nil && now.Add(expiryNotice).After(cert.Leaf.NotAfter) {
		warn("etcd client certificate %s expires on %s: replace it and its key, which needs no restart",
			c.CertFile, cert.Leaf.NotAfter.Format(time.DateOnly))
	}
	return warnings
}

// expiryNotice is the time before a certificate's expiry from which there is a warning.
const expiryNotice = 30 * 24 * time.Hour

// ReadCA reads a file of PEM certificates.
func ReadCA(file string) (*x509.CertPool, error) {
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("etcd CA certificate file: %w", safefile.Refused(err))
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("etcd CA certificate file %s holds no PEM certificate", file)
	}
	return pool, nil
}

// ReadKeyPair reads a certificate and its key from PEM files; the error names the wrong file.
func ReadKeyPair(certFile, keyFile string) (tls.Certificate, error) {
	for what, file := range map[string]string{"certificate": certFile, "key": keyFile} {
		if _, err := os.ReadFile(file); err != nil {
			return tls.Certificate{}, fmt.Errorf("etcd %s file: %w", what, safefile.Refused(err))
		}
	}
	cert, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("etcd certificate file %s with key file %s: %w", certFile, keyFile, err)
	}
	return cert, nil
}
