package laststate

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/manxnet/manx/datastore/codec"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/datastore/safefile"
)

const (
	format = "manx-last-state"
	// version is the version of the file's format. A file of another version is refused: nothing is converted, because
	// the next start with the datastore writes a new file.
	version = 1
	// limit bounds the file, in bytes. A cluster of 5,000 nodes needs some 2 MB.
	limit = 64 << 20
)

// State is a part of the datastore's content at one moment.
type State struct {
	Node     string    // the name of the node that has read it
	Origin   Origin    // how the node reached the datastore
	Written  time.Time // when the objects had their last change
	Valid    time.Time // when they were still as here: the time of the file
	Revision int64     // of the datastore; 0 if its kinds have separate clocks
	Objects  []*model.Object
}

// Origin identifies a datastore as far as a host knows it without a connection.
type Origin struct {
	Type        string   `json:"type"`                  // of connect.Settings
	Servers     []string `json:"servers,omitempty"`     // URLs or addresses, in any order
	Authorities []string `json:"authorities,omitempty"` // SHA-256 of the CA certificates by which servers are verified
}

// differs returns why two origins cannot be one datastore, empty if they can. Servers and authorities are replaced one
// by one in the life of a cluster: one in common suffices.
func (o Origin) differs(other Origin) string {
	switch {
	case o.Type != other.Type:
		return fmt.Sprintf("it is of a datastore of type %s, not %s", o.Type, other.Type)
	case !common(o.Servers, other.Servers):
		return fmt.Sprintf("it is of the datastore at %s, not %s", list(o.Servers), list(other.Servers))
	case !common(o.Authorities, other.Authorities):
		return "it is of a datastore with another CA"
	}
	return ""
}

func common(a, b []string) bool {
	return len(a) == 0 && len(b) == 0 || slices.ContainsFunc(a, func(s string) bool { return slices.Contains(b, s) })
}

func list(names []string) string {
	if len(names) == 0 {
		return "no address"
	}
	return strings.Join(names, ", ")
}

// header is the first line of the file. Each line after it has an object, and the last one the trailer.
type header struct {
	Format   string    `json:"format"`
	Version  int       `json:"version"`
	Node     string    `json:"node"`
	Origin   Origin    `json:"datastore"`
	Written  time.Time `json:"written"`
	Revision int64     `json:"revision"`
}

type entry struct {
	Kind      model.Kind      `json:"kind"`
	Namespace string          `json:"namespace,omitempty"`
	Name      string          `json:"name"`
	Revision  int64           `json:"revision"`
	Value     json.RawMessage `json:"value"`
}

// trailer returns the last line of a file whose other lines are given: it shows that nothing is missing or changed.
func trailer(lines []byte) []byte {
	return fmt.Appendf(nil, "{\"sha256\":\"%x\"}\n", sha256.Sum256(lines))
}

// Encode returns the content of the file, and a hash that is equal for equal objects of one node and origin, whatever
// their revisions and the time. It fails if the file would be too large to be read again.
func (s *State) Encode() (content []byte, hash [sha256.Size]byte, err error) {
	first, err := json.Marshal(header{format, version, s.Node, s.Origin, s.Written.UTC(), s.Revision})
	if err != nil {
		return nil, hash, err
	}
	content = append(first, '\n')
	values := sha256.New()
	fmt.Fprintf(values, "%q %+v\n", s.Node, s.Origin)
	for _, o := range s.Objects {
		value, err := codec.Encode(&model.Object{Key: o.Key, Value: o.Value})
		if err != nil {
			return nil, hash, err
		}
		line, err := json.Marshal(entry{o.Key.Kind, o.Key.Namespace, o.Key.Name, o.Revision, value})
		if err != nil {
			return nil, hash, fmt.Errorf("%s: %w", o.Key, err)
		}
		content = append(append(content, line...), '\n')
		fmt.Fprintf(values, "%q %q %q %s\n", o.Key.Kind, o.Key.Namespace, o.Key.Name, value)
	}
	content = append(content, trailer(content)...)
	if len(content) > limit {
		return nil, hash, fmt.Errorf("the state has %d bytes, more than %d", len(content), limit)
	}
	return content, [sha256.Size]byte(values.Sum(nil)), nil
}

// Read returns the state in a file, for a node that reaches its datastore as origin says. kinds are those that it may
// have. A file that was damaged, that another user could have written, or that belongs to another node, datastore or
// version is an error with the reason; a missing one wraps fs.ErrNotExist. Objects that are not valid are left out, as
// those in the datastore are.
func Read(path, node string, origin Origin, kinds []model.Kind) (*State, error) {
	content, modified, err := safefile.ReadTrusted(path, limit)
	if err != nil {
		return nil, err
	}
	s, err := decode(content, kinds)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s: %w", path, err)
	case s.Node != node:
		return nil, fmt.Errorf("%s: it is of the node %s, not %s", path, s.Node, node)
	}
	if why := s.Origin.differs(origin); why != "" {
		return nil, fmt.Errorf("%s: %s", path, why)
	}
	s.Valid = modified
	return s, nil
}

// decode reads the content of a file.
func decode(content []byte, kinds []model.Kind) (*State, error) {
	end := bytes.LastIndexByte(bytes.TrimSuffix(content, []byte("\n")), '\n') + 1
	if !bytes.Equal(content[end:], trailer(content[:end])) {
		return nil, errors.New("it is damaged, truncated or not a file of manxd: its last line is not the SHA-256 of " +
			"the lines before")
	}
	first, body, _ := bytes.Cut(content[:end], []byte("\n"))
	var h header
	switch err := json.Unmarshal(first, &h); {
	case err != nil || h.Format != format:
		return nil, errors.New("it is not a file of manxd")
	case h.Version != version:
		return nil, fmt.Errorf("it has version %d of the format, this manxd uses version %d", h.Version, version)
	}
	s := &State{Node: h.Node, Origin: h.Origin, Written: h.Written, Revision: h.Revision}
	for line := range bytes.Lines(body) {
		var e entry
		if err := json.Unmarshal(line, &e); err != nil {
			return nil, fmt.Errorf("it has a line without an object: %w", err)
		}
		key := model.Key{Kind: e.Kind, Namespace: e.Namespace, Name: e.Name}
		if !slices.Contains(kinds, e.Kind) {
			return nil, fmt.Errorf("it has the object %s, which does not belong in it", key)
		}
		if o := codec.Decode(key, e.Value, e.Revision); o.Err == nil {
			s.Objects = append(s.Objects, o)
		}
	}
	return s, nil
}
