package nftables

import (
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/dataplane/kernel/netlink"
)

// TableName is the one table that this package reads and changes, of the family inet.
const TableName = "manx"

// sendBuffer holds a transaction: the kernel takes none that is larger than the socket's buffer.
const sendBuffer = 64 << 20

// Conn is the nftables of one network namespace. Transactions are written here and not by google/nftables, which
// requests an answer to every message, so that large ones lose them, and which cannot identify the refused part; it
// serves to encode expressions. It is safe for concurrent use.
type Conn struct {
	namespace *netlink.Namespace

	mu sync.Mutex // one transaction at a time
	// commits is for transactions only, so that watchers know them by its port. No failure requires its replacement: an
	// unread answer has a number that belongs to no later transaction.
	commits *netlink.Socket // nil: closed
}

var _ Rules = (*Conn)(nil)

// New connects to the nftables of the process's network namespace.
func New() (*Conn, error) { return connect(nil) }

// Open connects to those of the network namespace at path, such as /run/netns/x.
func Open(path string) (*Conn, error) {
	namespace, err := netlink.OpenNamespace(path)
	if err != nil {
		return nil, err
	}
	r, err := connect(namespace)
	if err != nil {
		_ = namespace.Close()
		return nil, fmt.Errorf("network namespace %s: %w", path, err)
	}
	return r, nil
}

func connect(namespace *netlink.Namespace) (*Conn, error) {
	r := &Conn{namespace: namespace}
	s, err := r.open(netlink.RequestQueue)
	if err != nil {
		return nil, err
	}
	s.EnlargeSendBuffer(sendBuffer) // without the privilege the commit fails
	r.commits = s
	return r, nil
}

// Namespace is the one that r is connected to, which is closed with r.
func (r *Conn) Namespace() *netlink.Namespace { return r.namespace }

// open opens a socket of nfnetlink.
func (r *Conn) open(queue int) (*netlink.Socket, error) {
	s, err := r.namespace.Open(unix.NETLINK_NETFILTER, queue)
	if errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.EAFNOSUPPORT) {
		err = fmt.Errorf("%w: no nfnetlink: %w", ErrMissing, err)
	}
	return s, err
}

// Close releases the connection. The table stays.
func (r *Conn) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.commits == nil {
		return nil
	}
	r.commits.Close()
	r.commits = nil
	return r.namespace.Close()
}

// DeleteRules implements Rules.
func (r *Conn) DeleteRules() error {
	var b batch
	b.begin()
	b.table(unix.NFT_MSG_NEWTABLE) // so that there is one
	b.table(unix.NFT_MSG_DELTABLE)
	if err := r.commit(&b); err != nil {
		return fmt.Errorf("delete table inet %s: %w", TableName, err)
	}
	return nil
}
