package device

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// ndaProtocol is NDA_PROTOCOL, the origin of a neighbour, which the library's Neigh lacks.
const ndaProtocol = 12

// Neighbours makes neighbour entries with an origin, in one network namespace.
type Neighbours struct{ sockets map[int]*nl.SocketHandle }

// OpenNeighbours opens Neighbours in the namespace of the calling thread.
func OpenNeighbours() (Neighbours, error) {
	s, err := nl.GetNetlinkSocketAt(netns.None(), netns.None(), unix.NETLINK_ROUTE)
	if err != nil {
		return Neighbours{}, fmt.Errorf("open an rtnetlink socket: %w", err)
	}
	return Neighbours{map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: {Socket: s}}}, nil
}

// Close closes the socket, if there is one.
func (n Neighbours) Close() {
	for _, s := range n.sockets {
		s.Close()
	}
}

// Set makes a permanent entry on an interface, in place of any entry for the address. protocol is its origin, as of a
// route.
func (n Neighbours) Set(link int, a netip.Addr, mac net.HardwareAddr, protocol byte) error {
	request := nl.NewNetlinkRequest(unix.RTM_NEWNEIGH, unix.NLM_F_CREATE|unix.NLM_F_REPLACE|unix.NLM_F_ACK)
	request.Sockets = n.sockets
	request.AddData(&netlink.Ndmsg{Family: family(a), Index: uint32(link), State: unix.NUD_PERMANENT})
	request.AddData(nl.NewRtAttr(unix.NDA_DST, a.AsSlice()))
	request.AddData(nl.NewRtAttr(unix.NDA_LLADDR, mac))
	request.AddData(nl.NewRtAttr(ndaProtocol, []byte{protocol}))
	_, err := request.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

func family(a netip.Addr) uint8 {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}
