package kernel

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/dataplane/kernel/netlink"
)

// watchQueue holds the events of a burst, in bytes; an overflow costs a resync.
const watchQueue = 8 << 20

var watchGroups = []int{
	unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_IPV4_ROUTE,
	unix.RTNLGRP_IPV6_ROUTE,
}

// Watch implements watcher.
func (c *Conn) Watch(ctx context.Context, handle func([]Event), tables ...Table) error {
	s, err := c.subscribe(watchQueue)
	if err != nil {
		return fmt.Errorf("watch the kernel: %w", err)
	}
	handle([]Event{{Type: EventResync}})
	if err := readEvents(ctx, s, handle, OrMain(tables)); err != nil {
		return fmt.Errorf("watch the kernel: %w", err)
	}
	return nil
}

// readEvents reads events until ctx ends. Lost ones become EventResync.
func readEvents(ctx context.Context, s *netlink.Socket, handle func([]Event), tables []Table) error {
	var b eventBatch
	var p pacer
	return s.Follow(ctx, func(m netlink.Message) {
		if e, ok := parseEvent(m, tables); ok {
			b.add(e)
		}
	}, func() { b.add(Event{Type: EventResync}) }, func() {
		if events := b.take(); len(events) > 0 {
			handle(events)
			p.pause(ctx, time.Now())
		}
	})
}

// subscribe opens a socket that receives the events of others. Changes of our own routes are left out.
func (c *Conn) subscribe(queue int) (*netlink.Socket, error) {
	s, err := c.namespace.Open(unix.NETLINK_ROUTE, queue)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	var own uint32
	if c.sock != nil {
		own = c.sock.Port
	}
	c.mu.Unlock()
	if err := join(s, own); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

func join(s *netlink.Socket, own uint32) error {
	if err := s.Ignore(own, unix.RTM_NEWROUTE, unix.RTM_DELROUTE); err != nil {
		return fmt.Errorf("attach the filter: %w", err)
	}
	for _, group := range watchGroups {
		if err := s.Join(group); err != nil {
			return fmt.Errorf("subscribe to group %d: %w", group, err)
		}
	}
	return nil
}

func parseEvent(m netlink.Message, tables []Table) (e Event, ok bool) {
	switch m.Kind {
	case unix.RTM_NEWROUTE:
		e.Type = EventRoute
		e.Route, ok = parseRoute(m.Data, tables)
	case unix.RTM_DELROUTE:
		e.Type = EventRouteGone
		e.Route, ok = parseRoute(m.Data, tables)
	case unix.RTM_NEWLINK:
		e.Type = EventLink
		e.Link, ok = parseLink(m.Data)
	case unix.RTM_DELLINK:
		e.Type = EventLinkGone
		e.Link, ok = parseLink(m.Data)
	case unix.RTM_NEWADDR:
		e.Type = EventAddress
		e.Address, ok = parseAddress(m.Data)
	case unix.RTM_DELADDR:
		e.Type = EventAddressGone
		e.Address, ok = parseAddress(m.Data)
	}
	return e, ok
}
