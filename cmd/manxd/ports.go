package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/manxnet/manx/proto/server"
)

// ports opens the TCP ports that the daemon can do without. One that is taken, by a calico/node on its way out for
// instance, costs what it serves and nothing else: a notice says so, and it is opened as soon as it is free.
type ports struct {
	log *zap.Logger

	mu      sync.Mutex
	notices []server.Notice
}

// serve listens on an address, that of a flag, and hands the listener to serve. It returns when serve does or ctx ends.
func (p *ports) serve(ctx context.Context, flag, address string, serve func(net.Listener) error) error {
	for {
		l, err := net.Listen("tcp", address)
		p.note(flag, address, err)
		if err == nil {
			return serve(l)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(retryAfter):
		}
	}
}

// note keeps why the port of a flag is not served, and forgets it when err is nil.
func (p *ports) note(flag, address string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	subject := "--" + flag + "=" + address
	at := slices.IndexFunc(p.notices, func(n server.Notice) bool { return n.Subject == subject })
	switch {
	case err == nil && at >= 0:
		p.notices = slices.Delete(p.notices, at, at+1)
		p.log.Info("port opened", zap.String("flag", flag), zap.String("address", address))
	case err != nil:
		text := fmt.Sprintf("not served, tried again: %v", err)
		if errors.Is(err, syscall.EADDRINUSE) {
			text = "not served until the port is free: another process listens on it"
		}
		if at >= 0 {
			p.notices[at].Text = text
			return
		}
		p.notices = append(p.notices, server.Notice{Topic: "daemon", Subject: subject, Text: text, Since: time.Now()})
		p.log.Error("port not opened", zap.String("flag", flag), zap.String("address", address), zap.String("reason", text), zap.Error(err))
	}
}

// Notices are the ports that are not served and why.
func (p *ports) Notices() []server.Notice {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.notices)
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
