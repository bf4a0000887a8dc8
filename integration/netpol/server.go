package main

import (
	"fmt"
	"io"
	"net"
	"net/netip"

	"github.com/manxnet/manx/integration/lab"
)

// serve opens a pod's ports, in the namespace of the calling thread: TCP connections are accepted, UDP packets sent
// back, SCTP associations answered.
func serve(ip netip.Addr, ports []podPort) (closers []io.Closer, err error) {
	sctp := map[uint16]bool{}
	for _, p := range ports {
		address := netip.AddrPortFrom(ip, p.Port)
		var c io.Closer
		switch p.Protocol {
		case "TCP":
			c, err = serveTCP(address)
		case "UDP":
			c, err = serveUDP(address)
		case "SCTP":
			sctp[p.Port] = true
			continue
		default:
			err = fmt.Errorf("protocol %q is unknown: want TCP, UDP or SCTP", p.Protocol)
		}
		if err != nil {
			return closers, err
		}
		closers = append(closers, c)
	}
	if len(sctp) > 0 {
		c, err := lab.ServeSCTP(ip, sctp)
		if err != nil {
			return closers, err
		}
		closers = append(closers, c)
	}
	return closers, nil
}

func serveTCP(address netip.AddrPort) (io.Closer, error) {
	l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(address))
	if err != nil {
		return nil, err
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_ = c.Close()
		}
	}()
	return l, nil
}

func serveUDP(address netip.AddrPort) (io.Closer, error) {
	c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(address))
	if err != nil {
		return nil, err
	}
	go func() {
		buf := make([]byte, 64)
		for {
			n, from, err := c.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			_, _ = c.WriteToUDPAddrPort(buf[:n], from)
		}
	}()
	return c, nil
}
