package kernel

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/dataplane/ruleset"
)

// TableName is the one table that this package reads and changes, of the family inet.
const TableName = "manx"

// NFT is the nftables of one network namespace. It is safe for concurrent use.
type NFT struct {
	mu        sync.Mutex // one transaction at a time
	namespace *os.File   // nil: that of the process
}

var _ Rules = (*NFT)(nil)

// NewRules gives access to the rules of the process's network namespace.
func NewRules() *NFT { return &NFT{} }

// OpenRules gives access to the rules of the network namespace at path, such as /run/netns/x.
func OpenRules(path string) (*NFT, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open network namespace: %w", err)
	}
	return &NFT{namespace: f}, nil
}

// Close releases the namespace. Nothing that was made in the kernel goes away.
func (n *NFT) Close() error {
	if n.namespace == nil {
		return nil
	}
	return n.namespace.Close()
}

// socketBuffer is large enough for the requests, the answers and the events of the largest transactions: the kernel answers
// each message of one, and rules are repeated to those who make them.
const socketBuffer = 64 << 20

func enlarge(c *netlink.Conn) error {
	return errors.Join(force(c, unix.SO_SNDBUFFORCE, c.SetWriteBuffer), force(c, unix.SO_RCVBUFFORCE, c.SetReadBuffer))
}

// force sets a buffer beyond the system's limit, which needs privileges, or up to it.
func force(c *netlink.Conn, option int, otherwise func(int) error) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	if err := raw.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, option, socketBuffer)
	}); err != nil {
		return err
	}
	if failed != nil {
		return otherwise(socketBuffer)
	}
	return nil
}

func (n *NFT) fd() int {
	if n.namespace == nil {
		return 0
	}
	return int(n.namespace.Fd())
}

// conn makes a connection that opens a fresh socket for each of its operations, so that no answer is ever taken for another's.
func (n *NFT) conn() (*nftables.Conn, error) {
	options := []nftables.ConnOption{nftables.WithSockOptions(enlarge)}
	if n.namespace != nil {
		options = append(options, nftables.WithNetNSFd(n.fd()))
	}
	return nftables.New(options...)
}

func (n *NFT) socket() (*netlink.Conn, error) {
	c, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: n.fd()})
	if err != nil {
		return nil, classify("open a netlink socket", err)
	}
	if err := enlarge(c); err != nil {
		_ = c.Close()
		return nil, fmt.Errorf("enlarge a netlink socket's buffers: %w", err)
	}
	return c, nil
}

// classify says what an error of the kernel means for the caller.
func classify(doing string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.ENOBUFS), errors.Is(err, unix.EAGAIN):
		return fmt.Errorf("%s: %w: %w", doing, ErrUncertain, err)
	case errors.Is(err, unix.EPROTONOSUPPORT), errors.Is(err, unix.EAFNOSUPPORT):
		return fmt.Errorf("%s: %w: %w", doing, ErrNoNFTables, err)
	case errors.Is(err, unix.EOPNOTSUPP):
		return fmt.Errorf("%s: %w, or not all that is used of it: %w", doing, ErrNoNFTables, err)
	}
	return fmt.Errorf("%s: %w", doing, err)
}

// DeleteRules implements Rules.
func (n *NFT) DeleteRules() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	c, err := n.conn()
	if err != nil {
		return classify("open nftables", err)
	}
	table, err := n.find(c)
	if err != nil || table == nil {
		return err
	}
	c.DelTable(table)
	return classify("delete table inet "+TableName, c.Flush())
}

// find returns the table, nil if there is none.
func (n *NFT) find(c *nftables.Conn) (*nftables.Table, error) {
	tables, err := c.ListTablesOfFamily(nftables.TableFamilyINet)
	if err != nil {
		return nil, classify("list tables", err)
	}
	for _, t := range tables {
		if t.Name == TableName {
			return t, nil
		}
	}
	return nil, nil
}

func table() *nftables.Table {
	return &nftables.Table{Name: TableName, Family: nftables.TableFamilyINet}
}

var hooks = map[ruleset.Hook]*nftables.ChainHook{
	ruleset.Prerouting: nftables.ChainHookPrerouting, ruleset.Input: nftables.ChainHookInput, ruleset.Forward: nftables.ChainHookForward,
	ruleset.Output: nftables.ChainHookOutput, ruleset.Postrouting: nftables.ChainHookPostrouting,
}

var chainTypes = map[ruleset.ChainType]nftables.ChainType{
	ruleset.Filter: nftables.ChainTypeFilter, ruleset.NAT: nftables.ChainTypeNAT,
}
