package kubernetes

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/manxnet/manx/datastore/model"
)

// wholeTimeout bounds a list in one response: servers end requests by then.
const wholeTimeout = time.Minute

// readWhole reads everything as one list. It costs the server less processor time than a watch with initial events,
// and, since only responses are compressed, a tenth of the bytes. A server that supports the one also serves the other
// from its cache, as of the moment of the request.
func (f *feed) readWhole(ctx context.Context, r resource) error {
	if err := f.store.streams(ctx); cannotStream(err) {
		return err
	} else if err != nil { // about Namespaces, perhaps, which does not concern this kind
		return f.followFromStart(ctx, r)
	}
	return f.readBy(ctx, r, func(each func(*model.Object) error) (int64, error) {
		return f.store.whole(ctx, r, url.Values{}, each)
	})
}

// whole visits the objects of a resource as they arrive, in one list with the given parameters. If the server sends a
// part of it, the rest comes page by page.
func (s *Store) whole(
	ctx context.Context, r resource, q url.Values, each func(*model.Object) error,
) (revision int64, err error) {
	if r.fields != "" {
		q.Set("fieldSelector", r.fields)
	}
	page, err := s.onePage(ctx, r, q, each)
	if err != nil {
		return 0, err
	}
	if page.next != "" {
		return s.pages(ctx, r, listing{query: url.Values{"continue": {page.next}}, once: true}, each)
	}
	return revisionOfList(page)
}

// onePage visits the objects of one response as they arrive.
func (s *Store) onePage(
	ctx context.Context, r resource, q url.Values, each func(*model.Object) error,
) (listMeta, error) {
	ctx, cancel := context.WithTimeout(ctx, wholeTimeout)
	defer cancel()
	open := s.client.get
	if r.many {
		open = s.client.read
	}
	body, err := open(ctx, request{verb: http.MethodGet, path: r.path("", ""), accept: r.accept(), query: q})
	if err != nil {
		return listMeta{}, err
	}
	in, end := readAhead(body)
	defer end()
	defer cancel() // a reading that is given up ends
	return r.arriving(bufio.NewReaderSize(in, aheadBy), each)
}

// aheadBy is the number of bytes that readAhead reads at once.
const aheadBy = 128 << 10

// readAhead reads a response in a goroutine of its own while its caller decodes what came before: to decompress the
// pods of a large cluster takes as long as to decode them. end closes the response, whose context must have ended or
// which must have been read.
func readAhead(body io.ReadCloser) (in io.Reader, end func()) {
	reader, writer := io.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer body.Close() //nolint:errcheck // it was read
		_, err := io.CopyBuffer(writer, struct{ io.Reader }{body}, make([]byte, aheadBy))
		writer.CloseWithError(err)
	}()
	return reader, func() {
		reader.Close() //nolint:errcheck // always nil
		<-done
	}
}

// protobufList is protobufItems for a list that is read from a stream. An item is valid until its visit ends.
func protobufList(in *bufio.Reader, each func(item []byte) error) (listMeta, error) {
	start := make([]byte, len(magic))
	if _, err := io.ReadFull(in, start); err != nil {
		return listMeta{}, cutOff(err)
	}
	if !bytes.Equal(start, magic) {
		return listMeta{}, errMangled
	}
	var m metav1.ListMeta
	var room []byte
	take := func(size uint64) (_ []byte, err error) {
		if size > maxFrame {
			return nil, fmt.Errorf("%w: an object of %d bytes", errMangled, size)
		}
		if uint64(cap(room)) < size {
			room = make([]byte, size, max(size, 16<<10))
		}
		_, err = io.ReadFull(in, room[:size])
		return room[:size], cutOff(err)
	}
	found := false
	outer := comingFields{in: in, left: math.MaxInt64}
	err := outer.each(func(number protowire.Number, size uint64) error {
		if number != 2 || found { // the type, for instance
			return outer.skip(size)
		}
		found = true
		list := comingFields{in: in, left: size}
		return list.each(func(number protowire.Number, size uint64) error {
			if number > 2 {
				return list.skip(size)
			}
			content, err := take(size)
			if err != nil {
				return err
			}
			if number == 1 {
				return m.Unmarshal(content)
			}
			return each(content)
		})
	})
	if err == nil && !found {
		err = errMangled
	}
	return listMeta{m.ResourceVersion, m.Continue}, err
}

// comingFields are the length-delimited fields of a streamed message. The outermost one ends with the stream.
type comingFields struct {
	in   *bufio.Reader
	left uint64 // of the message
}

// ReadByte implements io.ByteReader within the message.
func (c *comingFields) ReadByte() (byte, error) {
	if c.left == 0 {
		return 0, io.EOF
	}
	b, err := c.in.ReadByte()
	if err == nil {
		c.left--
	}
	return b, err
}

// each visits the fields; visit must read all of the content from the stream.
func (c *comingFields) each(visit func(number protowire.Number, size uint64) error) error {
	whole := c.left == math.MaxInt64
	for {
		tag, err := binary.ReadUvarint(c)
		if errors.Is(err, io.EOF) && (whole || c.left == 0) {
			return nil
		}
		if err != nil {
			return cutOff(err)
		}
		number, typ := protowire.DecodeTag(tag)
		size, err := binary.ReadUvarint(c)
		if err != nil {
			return cutOff(err)
		}
		if number < 1 || typ != protowire.BytesType && typ != protowire.VarintType {
			return errMangled
		}
		if typ == protowire.VarintType {
			continue
		}
		if size > c.left {
			return errMangled
		}
		if !whole {
			c.left -= size
		}
		if err := visit(number, size); err != nil {
			return err
		}
	}
}

func (c *comingFields) skip(size uint64) error {
	_, err := io.CopyN(io.Discard, c.in, int64(size))
	return cutOff(err)
}

func revisionOfList(m listMeta) (int64, error) {
	revision, err := strconv.ParseInt(m.revision, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%w: revision of the list: %w", errMangled, err)
	}
	return revision, nil
}
