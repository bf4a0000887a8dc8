package announce

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/dataplane/kernel/netlink"
)

// Announcements hears machines behind interfaces.
type Announcements interface {
	// Hear calls heard once, in another goroutine, when a machine behind the device announces one of the addresses, as
	// a virtual machine does that begins to run at another place: by a gratuitous ARP (RFC 5227, section 3), an
	// unsolicited neighbour advertisement (RFC 4861, section 7.2.6), or a RARP (RFC 903), which names no address. stop
	// ends that, also before it has happened, after a last look; heard is not called after it.
	Hear(device string, addresses []netip.Addr, heard func()) (stop func(), err error)
	// Forget removes the rules of an earlier process, which it left when it was killed.
	Forget() error
}

// tablePrefix begins the names of tables. The device's name follows.
const tablePrefix = "manx-hear-"

// interval is the time between two reads of the counters. Until the machine is heard, its packets are lost or take a
// detour.
const interval = 100 * time.Millisecond

// Listener hears by the counters of rules at the ingress hook of a device: a daemon without CAP_NET_RAW may not open
// packet sockets.
type Listener struct{ namespace *netlink.Namespace }

// New makes a Listener for the interfaces of a namespace, which stays open while it is in use; nil: the process's.
func New(n *netlink.Namespace) *Listener { return &Listener{n} }

// Hear implements Announcements.
func (l *Listener) Hear(device string, addresses []netip.Addr, heard func()) (stop func(), err error) {
	c, err := l.open()
	if err != nil {
		return nil, fmt.Errorf("hear announcements on interface %s: %w", device, err)
	}
	table, chain, err := addRules(c, device, addresses)
	if err != nil {
		_ = c.CloseLasting()
		return nil, fmt.Errorf("hear announcements on interface %s: %w", device, err)
	}
	end, ended := make(chan struct{}), make(chan struct{})
	once := sync.OnceFunc(heard)
	go func() {
		defer close(ended)
		tick := time.NewTicker(interval)
		defer tick.Stop()
		for {
			select {
			case <-end:
				return
			case <-tick.C:
			}
			if counted(c, table, chain) {
				once()
				return
			}
		}
	}()
	return func() {
		close(end)
		<-ended
		if counted(c, table, chain) {
			once()
		}
		c.DelTable(table)
		_ = c.Flush() // without it the table is removed by the next Forget
		_ = c.CloseLasting()
	}, nil
}

// open connects to the nftables of the namespace.
func (l *Listener) open() (c *nftables.Conn, err error) {
	err = l.namespace.Do(func() error {
		c, err = nftables.New(nftables.AsLasting())
		return err
	})
	return c, err
}

// Forget implements Announcements.
func (l *Listener) Forget() error {
	c, err := l.open()
	if err != nil {
		return err
	}
	defer func() { _ = c.CloseLasting() }()
	tables, err := c.ListTablesOfFamily(nftables.TableFamilyNetdev)
	if err != nil {
		return err
	}
	for _, t := range tables {
		if strings.HasPrefix(t.Name, tablePrefix) {
			c.DelTable(t)
		}
	}
	return c.Flush()
}

// addRules makes the table of a device anew, with a chain of rules that count announcements.
func addRules(c *nftables.Conn, device string, addresses []netip.Addr) (*nftables.Table, *nftables.Chain, error) {
	t := &nftables.Table{Family: nftables.TableFamilyNetdev, Name: tablePrefix + device}
	c.AddTable(t) // so that there is one
	c.DelTable(t)
	t = c.AddTable(t)
	accept := nftables.ChainPolicyAccept
	chain := c.AddChain(&nftables.Chain{Name: "announcements", Table: t, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookIngress, Priority: nftables.ChainPriorityFilter, Device: device, Policy: &accept})
	add := func(matches ...expr.Any) {
		c.AddRule(&nftables.Rule{Table: t, Chain: chain, Exprs: append(matches, &expr.Counter{})})
	}
	add(protocol(unix.ETH_P_RARP)...)
	for _, a := range addresses {
		if a.Is4() { // RFC 826: the sender looks for its own address
			add(slices.Concat(protocol(unix.ETH_P_ARP), field(14, a.AsSlice()), field(24, a.AsSlice()))...)
			continue
		}
		// To all nodes, without an extension header; the target is behind the type, code, checksum and flags.
		add(slices.Concat(protocol(unix.ETH_P_IPV6), field(6, []byte{unix.IPPROTO_ICMPV6}),
			field(24, netip.IPv6LinkLocalAllNodes().AsSlice()), field(40, []byte{136}), field(48, a.AsSlice()))...)
	}
	return t, chain, c.Flush()
}

// protocol matches the EtherType of a frame, that of a virtual LAN's content too.
func protocol(ethertype uint16) []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyPROTOCOL, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.BigEndian.PutUint16(ethertype)}}
}

// field matches bytes of the packet behind the Ethernet header.
func field(offset uint32, data []byte) []expr.Any {
	return []expr.Any{&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset,
		Len: uint32(len(data))}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: data}}
}

// counted reports whether a rule has matched.
func counted(c *nftables.Conn, t *nftables.Table, chain *nftables.Chain) bool {
	rules, err := c.GetRules(t, chain)
	if err != nil {
		return false // the interface is gone
	}
	for _, r := range rules {
		for _, e := range r.Exprs {
			if n, ok := e.(*expr.Counter); ok && n.Packets > 0 {
				return true
			}
		}
	}
	return false
}
