// Package listen has the parts of the daemon that serve TCP ports for users and monitoring.
package listen

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"
)

// Port is a part that serves an optional TCP port. If the port is taken, by a calico/node that is ending for instance,
// only its service is missing: a notice reports that, and it is opened as soon as it is free.
type Port struct {
	name, address string
	Ready         func() error // reports another missing condition; nil: none
	serve         func(context.Context, net.Listener) error
	listener      net.Listener
}

// NewPort returns the part for the address of a flag, nil without one. serve closes the listener.
func NewPort(flag, address string, serve func(context.Context, net.Listener) error) *Port {
	if address == "" {
		return nil
	}
	return &Port{name: "--" + flag + "=" + address, address: address, serve: serve}
}

// Name implements part.Part.
func (p *Port) Name() string { return p.name }

// Open implements part.Opener.
func (p *Port) Open() (err error) {
	if p.Ready != nil {
		if err := p.Ready(); err != nil {
			return err
		}
	}
	p.listener, err = net.Listen("tcp", p.address)
	return err
}

// Run implements part.Part.
func (p *Port) Run(ctx context.Context) error { return p.serve(ctx, p.listener) }

// Explain implements part.Explainer.
func (p *Port) Explain(err error) string {
	if errors.Is(err, syscall.EADDRINUSE) {
		return "not served until the port is free: another process listens on it"
	}
	return fmt.Sprintf("not served, tried again: %v", err)
}

// Check refuses an address that can never be listened on.
func Check(flag, address string) error {
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
