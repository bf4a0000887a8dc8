package owners

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/netip"
	"strconv"

	"github.com/manxnet/manx/datastore/safefile"
)

const (
	// limit bounds the file in bytes: that is more than a million addresses.
	limit = 64 << 20
	// format is in the first line of the file, before the name of the node.
	format = "manxd address owners 1 "
)

// encode returns the content of the file: a line for the node, one for each address with its owner in hexadecimal, and
// one that shows that nothing is missing or changed.
func (m owners) encode(node string) []byte {
	b := append([]byte(format+node), '\n')
	for a, o := range m {
		b = append(strconv.AppendUint(append(a.AppendTo(b), ' '), o.id, 16), '\n')
	}
	return append(b, trailer(b)...)
}

func trailer(lines []byte) []byte { return fmt.Appendf(nil, "sha256 %x\n", sha256.Sum256(lines)) }

// read returns the owners in a file. An error that wraps fs.ErrNotExist is for a missing one; any other for one that is
// damaged, that another user could have written, or that belongs to another node.
func read(path, node string) (owners, error) {
	content, _, err := safefile.ReadTrusted(path, limit)
	if err != nil {
		return nil, err
	}
	end := bytes.LastIndexByte(bytes.TrimSuffix(content, []byte("\n")), '\n') + 1
	if !bytes.Equal(content[end:], trailer(content[:end])) {
		return nil, errors.New("it is damaged: its last line is not the SHA-256 of the lines before")
	}
	first, body, _ := bytes.Cut(content[:end], []byte("\n"))
	if string(first) != format+node {
		return nil, fmt.Errorf("it begins with %.100q, want %q", first, format+node)
	}
	m := owners{}
	for line := range bytes.Lines(body) {
		address, id, _ := bytes.Cut(bytes.TrimSuffix(line, []byte("\n")), []byte(" "))
		var a netip.Addr
		if err := a.UnmarshalText(address); err != nil {
			return nil, err
		}
		n, err := strconv.ParseUint(string(id), 16, 64)
		if err != nil {
			return nil, err
		}
		m[a] = owner{id: n}
	}
	return m, nil
}
