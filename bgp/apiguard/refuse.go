package apiguard

import (
	"bytes"
	"errors"
	"io"
	"net"
	"strconv"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/status"
)

// Limits on the effort for callers who are refused.
const (
	answersAtOnce = 8           // connections; more are closed without a word
	answerTime    = time.Second // on one connection
	answerFrames  = 64          // frames read from one connection
	answerRead    = 16 << 10    // octets of one frame, the least that HTTP/2 allows
)

// refuse answers the first call of a connection with a status and closes it. It does not wait.
func (g *Guard) refuse(c net.Conn, s *status.Status) {
	select {
	case g.answers <- struct{}{}:
		go func() {
			defer func() { <-g.answers }()
			defer c.Close()
			_ = c.SetDeadline(time.Now().Add(answerTime))
			_ = answer(c, s)
		}()
	default:
		_ = c.Close()
	}
}

// answer implements as much of an HTTP/2 server (RFC 9113) as is needed to refuse one gRPC call: it finds the ID of the
// first stream and decodes nothing else.
func answer(c net.Conn, s *status.Status) error {
	preface := make([]byte, len(http2.ClientPreface))
	if _, err := io.ReadFull(c, preface); err != nil || string(preface) != http2.ClientPreface {
		return errors.Join(err, errors.New("no HTTP/2 client"))
	}
	f := http2.NewFramer(c, c)
	f.SetMaxReadFrameSize(answerRead)
	if err := f.WriteSettings(); err != nil {
		return err
	}
	for range answerFrames {
		frame, err := f.ReadFrame()
		if err != nil {
			return err
		}
		switch frame := frame.(type) {
		case *http2.SettingsFrame:
			if frame.IsAck() {
				continue
			}
			err = f.WriteSettingsAck()
		case *http2.HeadersFrame:
			if err := writeStatus(f, frame.StreamID, s); err != nil {
				return err
			}
			_, _ = io.CopyN(io.Discard, c, answerRead) // until it closes: unread data would reset the connection
			return nil
		}
		if err != nil {
			return err
		}
	}
	return errors.New("no call")
}

// writeStatus ends a stream with a gRPC status and nothing else ("Trailers-Only" of gRPC over HTTP/2).
func writeStatus(f *http2.Framer, stream uint32, s *status.Status) error {
	var block bytes.Buffer
	h := hpack.NewEncoder(&block)
	for _, field := range []hpack.HeaderField{
		{Name: ":status", Value: "200"}, {Name: "content-type", Value: "application/grpc"},
		{Name: "grpc-status", Value: strconv.Itoa(int(s.Code()))}, {Name: "grpc-message", Value: s.Message()},
	} {
		if err := h.WriteField(field); err != nil {
			return err
		}
	}
	headers := http2.HeadersFrameParam{StreamID: stream, BlockFragment: block.Bytes(), EndStream: true,
		EndHeaders: true}
	if err := f.WriteHeaders(headers); err != nil {
		return err
	}
	return f.WriteGoAway(stream, http2.ErrCodeNo, nil)
}
