package fleet

import (
	"context"
	"io"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/httpstream"
	"k8s.io/client-go/transport/spdy"
)

// mostMessage is the largest error of a node, or of the way to it, in bytes.
const mostMessage = 64 << 10

// boundedUpgrader bounds all that client-go reads from a node, some of which it keeps in memory to the end: the API
// server passes on what a kubelet sends.
type boundedUpgrader struct {
	spdy.Upgrader
	limits map[string]int64 // by stream type; 0: none
	cancel context.CancelCauseFunc
}

// NewConnection implements spdy.Upgrader. The body of the response is an error, unless the connection was upgraded.
func (u boundedUpgrader) NewConnection(r *http.Response) (httpstream.Connection, error) {
	if r.StatusCode != http.StatusSwitchingProtocols {
		r.Body = struct {
			io.Reader
			io.Closer
		}{io.LimitReader(r.Body, mostMessage), r.Body}
	}
	conn, err := u.Upgrader.NewConnection(r)
	if err != nil {
		return nil, err
	}
	return boundedConnection{conn, u}, nil
}

type boundedConnection struct {
	httpstream.Connection
	u boundedUpgrader
}

// CreateStream implements httpstream.Connection.
func (c boundedConnection) CreateStream(headers http.Header) (httpstream.Stream, error) {
	s, err := c.Connection.CreateStream(headers)
	if err != nil {
		return nil, err
	}
	kind := headers.Get(corev1.StreamType)
	most := c.u.limits[kind]
	if most == 0 {
		return s, nil
	}
	return &boundedStream{Stream: s, left: most, cancel: c.u.cancel, tooMuch: errTooMuch{kind, most}}, nil
}

// boundedStream ends the command at its limit.
type boundedStream struct {
	httpstream.Stream
	left    int64
	cancel  context.CancelCauseFunc
	tooMuch errTooMuch
}

// Read implements io.Reader.
func (s *boundedStream) Read(p []byte) (int, error) {
	n, err := s.Stream.Read(p)
	if s.left -= int64(n); s.left < 0 {
		s.cancel(s.tooMuch)
		return 0, s.tooMuch
	}
	return n, err
}
