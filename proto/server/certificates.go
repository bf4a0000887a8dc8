package server

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"go.uber.org/zap"
)

// certificates are the certificates that the daemon shows to remote callers, and the CA that signs theirs. Their files
// are looked at again with each connection and each call: new content is used from then on, and the last good one while
// it is incomplete or wrong.
type certificates struct {
	caFile, certFile, keyFile string
	log                       *zap.Logger

	mu      sync.Mutex
	content [3][]byte // of the files, as last read
	pair    *tls.Certificate
	roots   *x509.CertPool
	problem string // with the content, as logged
}

// current returns the certificate to show and the roots that callers' certificates have to lead to. It fails only while
// no content of the files was ever good.
func (c *certificates) current() (*tls.Certificate, *x509.CertPool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	err := c.reload()
	if err == nil {
		c.problem = ""
		return c.pair, c.roots, nil
	}
	if c.pair == nil {
		return nil, nil, err
	}
	if text := err.Error(); text != c.problem {
		c.problem = text
		c.log.Warn("new certificates cannot be used, those before stay in use", zap.Error(err))
	}
	return c.pair, c.roots, nil
}

// reload takes over changes of the files.
func (c *certificates) reload() error {
	var content [3][]byte
	same := c.pair != nil
	for i, file := range []string{c.caFile, c.certFile, c.keyFile} {
		var err error
		if content[i], err = os.ReadFile(file); err != nil {
			return err
		}
		same = same && bytes.Equal(content[i], c.content[i])
	}
	if same {
		return nil
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(content[0]) {
		return fmt.Errorf("%s has no certificate in PEM", c.caFile)
	}
	pair, err := tls.X509KeyPair(content[1], content[2])
	if err != nil {
		return fmt.Errorf("%s and %s: %w", c.certFile, c.keyFile, err)
	}
	if end := pair.Leaf.NotAfter; time.Now().After(end) {
		return fmt.Errorf("the certificate in %s expired on %s", c.certFile, end.UTC().Format(time.RFC3339))
	}
	c.content, c.pair, c.roots = content, &pair, roots
	c.log.Info("certificates of the remote control listener", zap.String("subject", pair.Leaf.Subject.String()),
		zap.Time("expires", pair.Leaf.NotAfter))
	return nil
}

// config is that of one TLS connection. Sessions are not resumed: each connection proves again who calls.
func (c *certificates) config() (*tls.Config, error) {
	pair, roots, err := c.current()
	if err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{*pair}, NextProtos: []string{"h2"},
		ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: roots, SessionTicketsDisabled: true,
	}, nil
}

// verify checks a caller's chain of certificates as of now: one may expire, or lose its CA, while its connection lasts.
func (c *certificates) verify(chain []*x509.Certificate) error {
	if len(chain) == 0 {
		return errors.New("there is no certificate")
	}
	_, roots, err := c.current()
	if err != nil {
		return err
	}
	between := x509.NewCertPool()
	for _, x := range chain[1:] {
		between.AddCert(x)
	}
	_, err = chain[0].Verify(x509.VerifyOptions{Roots: roots, Intermediates: between,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	return err
}
