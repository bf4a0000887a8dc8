package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"
)

// port is a part that serves an optional TCP port. If the port is taken, by a calico/node that is ending for instance,
// only its service is missing: a notice reports that, and it is opened as soon as it is free.
type port struct {
	name, address string
	ready         func() error // reports another missing condition; nil: none
	serve         func(context.Context, net.Listener) error
	listener      net.Listener
}

// newPort returns the part for the address of a flag, nil without one. serve closes the listener.
func newPort(flag, address string, serve func(context.Context, net.Listener) error) *port {
	if address == "" {
		return nil
	}
	return &port{name: "--" + flag + "=" + address, address: address, serve: serve}
}

// Name implements part.Part.
func (p *port) Name() string { return p.name }

// Open implements part.Opener.
func (p *port) Open() (err error) {
	if p.ready != nil {
		if err := p.ready(); err != nil {
			return err
		}
	}
	p.listener, err = net.Listen("tcp", p.address)
	return err
}

// Run implements part.Part.
func (p *port) Run(ctx context.Context) error { return p.serve(ctx, p.listener) }

// Explain implements part.Explainer.
func (p *port) Explain(err error) string {
	if errors.Is(err, syscall.EADDRINUSE) {
		return "not served until the port is free: another process listens on it"
	}
	return fmt.Sprintf("not served, tried again: %v", err)
}

// checkListen refuses an address that can never be listened on.
func checkListen(flag, address string) error {
	host, port, err := net.SplitHostPort(address)
	if address == "" {
		return nil
	}
	if err == nil {
		_, err = net.LookupPort("tcp", port)
	}
	if err == nil && strings.ContainsAny(host, " /") {
		err = errors.New("bad address")
	}
	if err != nil {
		return fmt.Errorf("--%s=%s: %w; want ADDRESS:PORT, or nothing", flag, address, err)
	}
	return nil
}
