package etcd

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/model"
)

// probeTimeout bounds the diagnosis of one endpoint.
const probeTimeout = 2 * time.Second

// keyError wraps the error of an operation on key.
func (s *Store) keyError(ctx context.Context, op string, key model.Key, err error) error {
	return &datastore.KeyError{Op: op, Key: key, Err: s.explain(ctx, err)}
}

// explain converts an error of the etcd client to a datastore error, with a reason for an operator.
func (s *Store) explain(ctx context.Context, err error) error {
	if errors.Is(context.Cause(ctx), context.Canceled) {
		return context.Canceled
	}
	var known rpctypes.EtcdError
	if errors.As(err, &known) {
		switch known.Code() {
		case codes.PermissionDenied:
			return &notAllowed{fmt.Sprintf("the datastore does not let %s do this: grant it to read and write "+
				"everything below %s (%s)", s.who(), Root, known.Error())}
		case codes.Unauthenticated:
			return fmt.Errorf("%w: %s", datastore.ErrUnauthorized, known.Error())
		}
		switch {
		case errors.Is(known, rpctypes.ErrUserEmpty) && s.config.Username == "":
			return &notAllowed{fmt.Sprintf("the datastore wants a user and a password: set ETCD_USERNAME and "+
				"ETCD_PASSWORD_FILE (%s)", known.Error())}
		case errors.Is(known, rpctypes.ErrAuthFailed), errors.Is(known, rpctypes.ErrUserEmpty):
			return fmt.Errorf("%w: %s", datastore.ErrUnauthorized, known.Error())
		case errors.Is(known, rpctypes.ErrNoSpace):
			return fmt.Errorf("the datastore is full, delete something or raise its quota: %w", err)
		}
	}
	code := status.Code(err)
	if errors.As(err, &known) {
		code = known.Code()
	}
	switch {
	case code == codes.Unavailable, code == codes.DeadlineExceeded,
		errors.Is(err, context.DeadlineExceeded), errors.Is(err, errConnectionLost):
		// The reason is needed even if, or just because, ctx has ended.
		if reason := s.reachable(context.WithoutCancel(ctx), probeTimeout); reason != nil {
			return reason
		}
		if s.client != nil {
			s.client.ActiveConnection().ResetConnectBackoff() // reachable again: retry at once
		}
		return fmt.Errorf("%w: %s: %s", datastore.ErrUnavailable, strings.Join(s.config.Endpoints, ", "), plain(err))
	}
	return err
}

// notAllowed is datastore.ErrUnauthorized with another text, for credentials that are right or absent.
type notAllowed struct{ text string }

func (e *notAllowed) Error() string { return e.text }

// Is reports datastore.ErrUnauthorized as a match.
func (e *notAllowed) Is(target error) bool { return target == datastore.ErrUnauthorized }

// who returns the user that the datastore authenticates.
func (s *Store) who() string {
	if s.config.Username == "" {
		return "this client"
	}
	return "user " + s.config.Username
}

// plain strips gRPC's prefix of messages.
func plain(err error) string {
	if st, ok := status.FromError(err); ok {
		return st.Message()
	}
	return err.Error()
}

// reachable returns nil if at least one endpoint answers, otherwise the problem of each.
func (s *Store) reachable(ctx context.Context, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	results := make(chan error, len(s.config.Endpoints))
	for _, e := range s.config.Endpoints {
		go func() { results <- s.probe(ctx, e) }()
	}
	var wrong []string
	for range s.config.Endpoints {
		err := <-results
		if err == nil {
			return nil
		}
		wrong = append(wrong, err.Error())
	}
	slices.Sort(wrong)
	return fmt.Errorf("%w: %s", datastore.ErrUnavailable, strings.Join(wrong, "; "))
}

// hello is the start of an HTTP/2 connection: the client's preface and an empty SETTINGS frame (RFC 9113 section 3.4).
const hello = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + "\x00\x00\x00\x04\x00\x00\x00\x00\x00"

// probe connects to an endpoint, does the TLS handshake if it uses TLS, and waits for the first frame.
func (s *Store) probe(ctx context.Context, endpoint string) error {
	network := "tcp"
	scheme, address := splitEndpoint(endpoint)
	if scheme == "unix" {
		network = scheme
	}
	config, err := s.config.tlsConfig()
	if err != nil {
		return err
	}
	err = greet(ctx, network, address, config)
	var dial *net.OpError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &dial) && dial.Op == "dial":
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded):
		err = errors.New("accepts connections, but does not answer")
	case s.tls == nil:
		// This only detects TLS: no authentication, no data.
		if other := greet(ctx, network, address, &tls.Config{InsecureSkipVerify: true}); other == nil ||
			isAlert(other) {
			err = errors.New("speaks TLS, want https:// instead of http://")
		}
	case greet(ctx, network, address, nil) == nil:
		err = errors.New("does not speak TLS, want http:// instead of https://")
	default:
		err = s.tlsReason(err)
	}
	return fmt.Errorf("%s: %w", endpoint, err)
}

func greet(ctx context.Context, network, address string, config *tls.Config) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err != nil {
		return err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if config != nil {
		config = config.Clone()
		config.ServerName, _, _ = net.SplitHostPort(address)
		config.NextProtos = []string{"h2"}
		conn = tls.Client(conn, config)
	}
	if _, err := conn.Write([]byte(hello)); err != nil {
		return err
	}
	// A TLS 1.3 server refuses a client's certificate only after the client's handshake has ended, thus in the
	// response.
	frame := make([]byte, 9)
	if _, err := io.ReadFull(conn, frame); err != nil {
		return err
	}
	if frame[3] != settingsFrame {
		return fmt.Errorf("is no etcd server: answers %q", frame)
	}
	return nil
}

// settingsFrame is the type of the first frame that either side sends, RFC 9113 section 6.5.
const settingsFrame = 4

func isAlert(err error) bool {
	var alert tls.AlertError
	return errors.As(err, &alert) || strings.Contains(err.Error(), "remote error: tls:")
}

// tlsReason names the file or setting that explains a failed handshake.
func (s *Store) tlsReason(err error) error {
	var unknown x509.UnknownAuthorityError
	switch {
	case errors.As(err, &unknown) && s.config.CAFile == "":
		return fmt.Errorf("the server's certificate is signed by none of this host's authorities, a CA certificate "+
			"file is needed (%w)", err)
	case errors.As(err, &unknown):
		return fmt.Errorf("the server's certificate is not signed by CA certificate file %s (%w)", s.config.CAFile, err)
	case isAlert(err) && s.config.CertFile == "":
		return fmt.Errorf("the server wants a client certificate, certificate and key file are needed (%w)", err)
	case isAlert(err):
		return fmt.Errorf("the server refuses the client certificate of %s (%w)", s.config.CertFile, err)
	}
	return err
}
