package kubernetes

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"google.golang.org/protobuf/encoding/protowire"
)

// The API's protobuf form: four bytes, then a message (runtime.Unknown) whose second field is the object. An object's
// first field is its metadata. A list's first field is its metadata, too, and its second one repeats the items. An
// event of a watch follows its length in four bytes; it has the type, and an object within a message.
var magic = []byte("k8s\x00")

var errMangled = errors.New("the answer of the API cannot be read")

// maxFrame bounds one event of a watch: etcd's limit for objects is 1.5 MB.
const maxFrame = 16 << 20

// field returns the content of the first field with a number, nil if there is none.
func field(message []byte, number protowire.Number) ([]byte, error) {
	var found []byte
	err := fields(message, func(n protowire.Number, content []byte) error {
		if n == number && found == nil {
			found = content
		}
		return nil
	})
	return found, err
}

// fields visits the length-delimited fields of a message.
func fields(message []byte, each func(protowire.Number, []byte) error) error {
	for len(message) > 0 {
		number, typ, n := protowire.ConsumeTag(message)
		if n < 0 {
			return errMangled
		}
		message = message[n:]
		if typ != protowire.BytesType {
			if n = protowire.ConsumeFieldValue(number, typ, message); n < 0 {
				return errMangled
			}
			message = message[n:]
			continue
		}
		content, n := protowire.ConsumeBytes(message)
		if n < 0 {
			return errMangled
		}
		if err := each(number, content); err != nil {
			return err
		}
		message = message[n:]
	}
	return nil
}

// unwrap returns the object in a response.
func unwrap(raw []byte) ([]byte, error) {
	if !bytes.HasPrefix(raw, magic) {
		return nil, errMangled
	}
	return field(raw[len(magic):], 2)
}

// listMeta is the metadata of a page of a list.
type listMeta struct{ revision, next string }

// protobufItems visits the items of a page.
func protobufItems(raw []byte, each func(item []byte) error) (listMeta, error) {
	list, err := unwrap(raw)
	if err != nil {
		return listMeta{}, err
	}
	var m metav1.ListMeta
	err = fields(list, func(n protowire.Number, content []byte) error {
		switch n {
		case 1:
			return m.Unmarshal(content)
		case 2:
			return each(content)
		}
		return nil
	})
	return listMeta{m.ResourceVersion, m.Continue}, err
}

// jsonList visits the items of a list that is read from a stream.
func jsonList(in io.Reader, each func(item []byte) error) (listMeta, error) {
	d := json.NewDecoder(in)
	var m metav1.ListMeta
	err := jsonValues(d, '{', func(name string) error {
		switch name {
		case "metadata":
			return mangled(d.Decode(&m))
		case "items":
			return jsonValues(d, '[', func(string) error {
				var item json.RawMessage
				if err := d.Decode(&item); err != nil {
					return mangled(err)
				}
				return each(item)
			})
		}
		return mangled(d.Decode(new(json.RawMessage)))
	})
	return listMeta{m.ResourceVersion, m.Continue}, err
}

// jsonValues visits the values of an object, with their names, or those of an array. visit must read the value.
func jsonValues(d *json.Decoder, opening json.Delim, visit func(name string) error) error {
	first, err := d.Token()
	if err != nil || first == nil { // null is an empty one
		return mangled(err)
	}
	if first != opening {
		return fmt.Errorf("%w: %v in place of %v", errMangled, first, opening)
	}
	for d.More() {
		name := ""
		if opening == '{' {
			t, err := d.Token()
			if err != nil {
				return mangled(err)
			}
			name, _ = t.(string) // the decoder allows no others
		}
		if err := visit(name); err != nil {
			return err
		}
	}
	_, err = d.Token() // the end; a cut list has none
	return mangled(err)
}

// mangled is the error of a list that is cut off or is no JSON; nil if err is.
func mangled(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: %w", errMangled, cutOff(err))
}

// frame is one event of a watch. object is valid until the next one is read.
type frame struct {
	typ    string // ADDED, MODIFIED, DELETED, BOOKMARK, ERROR
	object []byte
}

// frames reads the events of a watch, one after the other.
type frames interface {
	next() (frame, error)
	// ready reports whether the next one has arrived.
	ready() bool
}

type jsonFrames struct{ decoder *json.Decoder }

func (f jsonFrames) next() (frame, error) {
	var e struct {
		Type   string          `json:"type"`
		Object json.RawMessage `json:"object"`
	}
	err := f.decoder.Decode(&e)
	return frame{e.Type, e.Object}, err
}

func (f jsonFrames) ready() bool { return false }

type protobufFrames struct {
	reader *bufio.Reader
	buffer []byte
}

func (f *protobufFrames) next() (frame, error) {
	var size [4]byte
	if _, err := io.ReadFull(f.reader, size[:]); err != nil {
		return frame{}, err
	}
	n := binary.BigEndian.Uint32(size[:])
	if n > maxFrame {
		return frame{}, fmt.Errorf("%w: an event of %d bytes", errMangled, n)
	}
	if uint32(cap(f.buffer)) < n {
		f.buffer = make([]byte, n, max(n, 16<<10))
	}
	f.buffer = f.buffer[:n]
	if _, err := io.ReadFull(f.reader, f.buffer); err != nil {
		return frame{}, cutOff(err)
	}
	typ, err := field(f.buffer, 1)
	if err != nil {
		return frame{}, err
	}
	extension, err := field(f.buffer, 2)
	if err != nil {
		return frame{}, err
	}
	wrapped, err := field(extension, 1)
	if err != nil {
		return frame{}, err
	}
	object, err := unwrap(wrapped)
	return frame{string(typ), object}, err
}

func (f *protobufFrames) ready() bool {
	size, err := f.reader.Peek(min(4, f.reader.Buffered()))
	return err == nil && len(size) == 4 && f.reader.Buffered()-4 >= int(binary.BigEndian.Uint32(size))
}

func cutOff(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// status returns the error in an event of type ERROR.
func (f frame) status(protobuf bool) error {
	var s metav1.Status
	var err error
	if protobuf {
		err = s.Unmarshal(f.object)
	} else {
		err = json.Unmarshal(f.object, &s)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errMangled, err)
	}
	return apierrors.FromObject(&s)
}

// mark is the content of a bookmark: a revision, and whether all initial events have come.
type mark struct {
	Metadata metav1.ObjectMeta `json:"metadata"`
}

func (f frame) bookmark(protobuf bool) (mark, error) {
	var m mark
	if !protobuf {
		return m, json.Unmarshal(f.object, &m)
	}
	meta, err := field(f.object, 1)
	if err != nil {
		return m, err
	}
	return m, m.Metadata.Unmarshal(meta)
}
