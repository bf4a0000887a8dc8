package kernel

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// TableName is the one table that this package reads and changes, of the family inet.
const TableName = "manx"

// sendBuffer holds a transaction: the kernel takes none that is larger than the socket's buffer.
const sendBuffer = 64 << 20

// NFT is the nftables of one network namespace. Transactions are written here and not by google/nftables, which asks
// for an answer to every message, so that large ones lose them, and which cannot tell what the kernel refused; it
// serves to encode expressions. It is safe for concurrent use.
type NFT struct {
	namespace *Conn // for its namespace only

	mu sync.Mutex // one transaction at a time
	// commits is for nothing but transactions, so that watchers know them by its port. Nothing that fails needs it
	// replaced: an answer that nobody read has a number that belongs to no later transaction.
	commits *socket // nil: closed
}

var _ Rules = (*NFT)(nil)

// NewRules connects to the nftables of the process's network namespace.
func NewRules() (*NFT, error) { return openRules(nil) }

// OpenRules connects to those of the network namespace at path, such as /run/netns/x.
func OpenRules(path string) (*NFT, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open network namespace: %w", err)
	}
	r, err := openRules(f)
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("network namespace %s: %w", path, err)
	}
	return r, nil
}

func openRules(namespace *os.File) (*NFT, error) {
	r := &NFT{namespace: &Conn{namespace: namespace}}
	s, err := r.open(requestQueue)
	if err != nil {
		return nil, err
	}
	// Without the privilege the commit says so.
	_ = unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, sendBuffer)
	r.commits = s
	return r, nil
}

func (r *NFT) open(bufferSize int) (s *socket, err error) {
	err = r.namespace.inside(func() (err error) {
		s, err = openNetlink(unix.NETLINK_NETFILTER, "nfnetlink", bufferSize)
		return err
	})
	if errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.EAFNOSUPPORT) {
		err = fmt.Errorf("%w: no nfnetlink: %w", ErrNoNFTables, err)
	}
	return s, err
}

// Close releases the connection. The table stays.
func (r *NFT) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.commits == nil {
		return nil
	}
	r.commits.close()
	r.commits = nil
	if f := r.namespace.namespace; f != nil {
		return f.Close()
	}
	return nil
}

// DeleteRules implements Rules.
func (r *NFT) DeleteRules() error {
	var b batch
	b.begin()
	b.table(unix.NFT_MSG_NEWTABLE) // so that there is one
	b.table(unix.NFT_MSG_DELTABLE)
	if err := r.commit(&b); err != nil {
		return fmt.Errorf("delete table inet %s: %w", TableName, err)
	}
	return nil
}
