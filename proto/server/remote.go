package server

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
)

// Remote lists the callers from other hosts: over TLS alone, with a certificate of the CA, in the role that one of the
// names in the certificate (common name, DNS name or URI) has here. Names are compared exactly; a caller without one of
// them may do nothing.
type Remote struct {
	CAFile            string // signs the callers' certificates
	CertFile, KeyFile string // of the daemon
	Admins, Readers   []string
}

// Check returns an error that names missing settings, nil if there are none.
func (r Remote) Check() error {
	switch {
	case r.CAFile == "" || r.CertFile == "" || r.KeyFile == "":
		return errors.New("the remote control listener needs a CA file, a certificate file and a key file")
	case len(r.Admins)+len(r.Readers) == 0:
		return errors.New("the remote control listener needs the name of at least one admin or reader: without, " +
			"nobody could call")
	}
	return nil
}

// Readable returns why the certificates cannot be used as they are, nil if they can.
func (r Remote) Readable() error {
	_, _, err := r.certificates(zap.NewNop()).current()
	return err
}

func (r Remote) certificates(log *zap.Logger) *certificates {
	return &certificates{caFile: r.CAFile, certFile: r.CertFile, keyFile: r.KeyFile, log: log}
}

// Bounds of the remote listener.
const (
	remoteStreams  = 8        // calls at a time on one connection
	remoteAnswer   = 64 << 20 // bytes, some 200,000 routes: an answer waits in memory until it is read
	handshakeTime  = 10 * time.Second
	remoteHeaders  = 16 << 10 // bytes
	keepaliveEvery = time.Minute
	keepaliveWait  = 20 * time.Second // for the answer; then the connection is closed
	keepaliveLeast = 10 * time.Second // between those of a caller
	remoteIdle     = 30 * time.Minute // without a call
	// of a connection: a stream outlives the certificate that began it no longer than that
	remoteAge = 12 * time.Hour
)

// ServeRemote answers calls on l, a TCP listener, of callers with a certificate and a role, until ctx ends; then it
// ends all calls and closes l.
func (s *Server) ServeRemote(ctx context.Context, l net.Listener, r Remote) error {
	if err := r.Check(); err != nil {
		return err
	}
	tls := &mutualTLS{server: s, remote: r, certificates: r.certificates(s.config.Log)}
	g := s.newServer(grpc.Creds(tls), grpc.ConnectionTimeout(handshakeTime), grpc.MaxConcurrentStreams(remoteStreams),
		grpc.MaxHeaderListSize(remoteHeaders), grpc.MaxSendMsgSize(remoteAnswer),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: keepaliveEvery, Timeout: keepaliveWait,
			MaxConnectionIdle: remoteIdle, MaxConnectionAge: remoteAge, MaxConnectionAgeGrace: handshakeTime}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: keepaliveLeast,
			PermitWithoutStream: true}))
	return serve(ctx, &boundedListener{Listener: l, server: s}, g)
}

// mutualTLS authenticates each side to the other, and reports a failure to both.
type mutualTLS struct {
	server       *Server
	remote       Remote
	certificates *certificates
}

// ServerHandshake implements credentials.TransportCredentials.
func (m *mutualTLS) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	config, err := m.certificates.config()
	if err != nil {
		m.server.refused("remote control connection refused", zap.Stringer("remote", raw.RemoteAddr()), zap.Error(err))
		return nil, nil, err
	}
	conn := tls.Server(raw, config)
	if err = conn.Handshake(); err == nil && conn.ConnectionState().NegotiatedProtocol != "h2" {
		err = errors.New("the caller does not offer HTTP/2 (ALPN)")
	}
	if bounded, ok := raw.(*boundedConn); ok && err == nil {
		err = bounded.proved()
	}
	if err != nil {
		m.server.refused("remote control connection refused", zap.Stringer("remote", raw.RemoteAddr()),
			zap.String("subject", subjectOf(err)), zap.String("reason", handshakeWords(err)))
		linger(raw)
		return nil, nil, err
	}
	return conn, certified{CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity},
		from: m, chain: conn.ConnectionState().PeerCertificates, address: raw.RemoteAddr().String()}, nil
}

// linger lets the caller read the alert with the reason of the refusal: data that it has sent and that stays unread
// would make the kernel reset the connection, and drop the alert on its way.
func linger(raw net.Conn) {
	tcp, ok := raw.(interface{ CloseWrite() error })
	if !ok || tcp.CloseWrite() != nil {
		return
	}
	_ = raw.SetReadDeadline(time.Now().Add(lingerTime))
	_, _ = io.CopyN(io.Discard, raw, lingerBytes)
}

const (
	lingerTime  = time.Second
	lingerBytes = 64 << 10
)

// subjectOf is whose certificate was refused, empty if there was none.
func subjectOf(err error) string {
	if bad := new(tls.CertificateVerificationError); errors.As(err, &bad) && len(bad.UnverifiedCertificates) > 0 {
		return bad.UnverifiedCertificates[0].Subject.String()
	}
	return ""
}

// handshakeWords explains why a handshake failed.
func handshakeWords(err error) string {
	if errors.Is(err, io.EOF) {
		return "the caller closed the connection: it probably does not trust the certificate of this daemon, " +
			"or sent none"
	}
	if alert, ok := strings.CutPrefix(err.Error(), "remote error: tls: "); ok {
		return "the caller does not accept the certificate of this daemon: " + alert
	}
	return strings.TrimPrefix(err.Error(), "tls: ")
}

// ClientHandshake implements credentials.TransportCredentials.
func (*mutualTLS) ClientHandshake(context.Context, string, net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("only the server is made here")
}

// Info implements credentials.TransportCredentials.
func (*mutualTLS) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}

// Clone implements credentials.TransportCredentials.
func (m *mutualTLS) Clone() credentials.TransportCredentials { return m }

// OverrideServerName implements credentials.TransportCredentials.
func (*mutualTLS) OverrideServerName(string) error { return nil }

// certified is a caller that has shown a certificate.
type certified struct {
	credentials.CommonAuthInfo
	from    *mutualTLS
	chain   []*x509.Certificate // its own first
	address string
}

// AuthType implements credentials.AuthInfo.
func (certified) AuthType() string { return "tls" }

// allows implements identity.
func (c certified) allows(needs Role) error {
	if err := c.from.certificates.verify(c.chain); err != nil {
		return status.Errorf(codes.Unauthenticated, "the certificate of this connection is not accepted any more: %v",
			err)
	}
	names, r := namesOf(c.chain[0]), c.from.remote
	has := func(list []string) bool {
		return slices.ContainsFunc(names, func(n string) bool { return slices.Contains(list, n) })
	}
	admin := has(r.Admins)
	switch {
	case needs == RoleLocal:
		return status.Error(codes.PermissionDenied, "this call is for programs on the node itself, by the unix socket")
	case admin, needs == RoleRead && has(r.Readers):
		return nil
	case has(r.Readers):
		return status.Errorf(codes.PermissionDenied,
			"the certificate of %s may only read: this call needs the role admin (--control-admins of manxd)",
			listed(names))
	}
	return status.Errorf(codes.PermissionDenied,
		"the certificate of %s has no role here: --control-admins and --control-readers of manxd list none of its "+
			"names",
		listed(names))
}

// fields implements identity.
func (c certified) fields() []zap.Field {
	return []zap.Field{zap.String("caller_address", c.address),
		zap.String("caller_subject", c.chain[0].Subject.String()),
		zap.Strings("caller_names", namesOf(c.chain[0])), zap.String("caller_serial", c.chain[0].SerialNumber.Text(16))}
}

// namesOf are the names in a certificate that may have a role.
func namesOf(c *x509.Certificate) []string {
	names := slices.Clone(c.DNSNames)
	if c.Subject.CommonName != "" {
		names = append([]string{c.Subject.CommonName}, names...)
	}
	for _, u := range c.URIs {
		names = append(names, u.String())
	}
	return names
}

func listed(names []string) string {
	if len(names) == 0 {
		return "nobody (it has no common name, DNS name or URI)"
	}
	quoted := make([]string, len(names))
	for i, n := range names {
		quoted[i] = fmt.Sprintf("%q", n)
	}
	return strings.Join(quoted, ", ")
}
