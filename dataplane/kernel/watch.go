package kernel

import (
	"context"
	"fmt"
	"math/bits"
	"unsafe"

	"golang.org/x/sys/unix"
)

// watchQueue holds the events of a burst; what does not fit costs a resync.
const watchQueue = 8 << 20

var watchGroups = []int{
	unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_IPV4_ROUTE,
	unix.RTNLGRP_IPV6_ROUTE,
}

// Watch implements Watcher.
func (c *Conn) Watch(ctx context.Context, handle func([]Event), tables ...Table) error {
	s, err := c.openWatch()
	if err != nil {
		return fmt.Errorf("watch the kernel: %w", err)
	}
	handle([]Event{{Type: EventResync}})
	if err := s.followHost(ctx, handle, orMain(tables)); err != nil {
		return fmt.Errorf("watch the kernel: %w", err)
	}
	return nil
}

// followHost reads events. Lost ones become EventResync.
func (s *socket) followHost(ctx context.Context, handle func([]Event), tables []Table) error {
	var events []Event
	return s.follow(ctx, func(m message) {
		if e, ok := parseEvent(m, tables); ok {
			events = append(events, e)
		}
	}, func() { events = append(events, Event{Type: EventResync}) }, func() {
		if len(events) > 0 {
			handle(events)
		}
		events = nil
	})
}

func (c *Conn) openWatch() (*socket, error) {
	var s *socket
	if err := c.inside(func() (err error) { s, err = openSocket(watchQueue); return err }); err != nil {
		return nil, err
	}
	c.mu.Lock()
	var own uint32
	if c.sock != nil {
		own = c.sock.port
	}
	c.mu.Unlock()
	if err := s.subscribe(own); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

func (s *socket) subscribe(own uint32) error {
	if err := s.dropOwnRoutes(own); err != nil {
		return fmt.Errorf("attach the filter: %w", err)
	}
	for _, group := range watchGroups {
		if err := unix.SetsockoptInt(s.fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, group); err != nil {
			return fmt.Errorf("subscribe to group %d: %w", group, err)
		}
	}
	return nil
}

// dropOwnRoutes lets the kernel drop the events of route changes that came from our port, so that programming many
// routes does not wake the watcher for each of them.
func (s *socket) dropOwnRoutes(port uint32) error {
	const keep = 0xffffffff
	program := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_H | unix.BPF_ABS, K: 4}, // nlmsg_type
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: uint32(bigEndian16(unix.RTM_NEWROUTE)), Jt: 1},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: uint32(bigEndian16(unix.RTM_DELROUTE)), Jf: 2},
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 12}, // nlmsg_pid
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: bigEndian32(port), Jt: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: keep},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0},
	}
	return unix.SetsockoptSockFprog(s.fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
		&unix.SockFprog{Len: uint16(len(program)), Filter: (*unix.SockFilter)(unsafe.Pointer(&program[0]))})
}

// Socket filters load big-endian; netlink headers are native.
func bigEndian16(v uint16) uint16 {
	if native.Uint16([]byte{0, 1}) == 1 {
		return v
	}
	return bits.ReverseBytes16(v)
}

func bigEndian32(v uint32) uint32 {
	if native.Uint16([]byte{0, 1}) == 1 {
		return v
	}
	return bits.ReverseBytes32(v)
}

func parseEvent(m message, tables []Table) (e Event, ok bool) {
	switch m.kind {
	case unix.RTM_NEWROUTE:
		e.Type = EventRoute
		e.Route, ok = parseRoute(m.data, tables)
	case unix.RTM_DELROUTE:
		e.Type = EventRouteGone
		e.Route, ok = parseRoute(m.data, tables)
	case unix.RTM_NEWLINK:
		e.Type = EventLink
		e.Link, ok = parseLink(m.data)
	case unix.RTM_DELLINK:
		e.Type = EventLinkGone
		e.Link, ok = parseLink(m.data)
	case unix.RTM_NEWADDR:
		e.Type = EventAddress
		e.Address, ok = parseAddress(m.data)
	case unix.RTM_DELADDR:
		e.Type = EventAddressGone
		e.Address, ok = parseAddress(m.data)
	}
	return e, ok
}
