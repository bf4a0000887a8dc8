package kernel

import (
	"context"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// WatchRules implements Rules.
func (r *NFT) WatchRules(ctx context.Context, handle func()) error {
	s, err := r.openRulesWatch()
	if err != nil {
		return fmt.Errorf("watch nftables: %w", err)
	}
	handle()
	if err := s.followRules(ctx, handle); err != nil {
		return fmt.Errorf("watch nftables: %w", err)
	}
	return nil
}

// followRules calls handle when our table was changed, or may have been because events were lost.
func (s *socket) followRules(ctx context.Context, handle func()) error {
	changed := false
	return s.follow(ctx, func(m message) { changed = changed || aboutRulesTable(m) }, func() { changed = true },
		func() {
			if changed {
				handle()
			}
			changed = false
		})
}

func (r *NFT) openRulesWatch() (*socket, error) {
	r.mu.Lock()
	commits := r.commits
	r.mu.Unlock()
	if commits == nil {
		return nil, os.ErrClosed
	}
	s, err := r.open(watchQueue)
	if err != nil {
		return nil, err
	}
	if err := s.subscribeRules(commits.port); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

func (s *socket) subscribeRules(own uint32) error {
	if err := s.dropOwn(own); err != nil {
		return fmt.Errorf("attach the filter: %w", err)
	}
	if err := unix.SetsockoptInt(s.fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP,
		unix.NFNLGRP_NFTABLES); err != nil {
		return fmt.Errorf("subscribe to nftables: %w", err)
	}
	return nil
}

// dropOwn lets the kernel drop the events of transactions that came from our port: there are as many as there are
// elements.
func (s *socket) dropOwn(port uint32) error {
	program := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 12}, // nlmsg_pid; all messages of a datagram have the same
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: bigEndian32(port), Jt: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0xffffffff},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0},
	}
	return unix.SetsockoptSockFprog(s.fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
		&unix.SockFprog{Len: uint16(len(program)), Filter: (*unix.SockFilter)(unsafe.Pointer(&program[0]))})
}

// aboutRulesTable: all objects of nf_tables have the name of their table as attribute 1.
func aboutRulesTable(m message) bool {
	if m.kind>>8 != unix.NFNL_SUBSYS_NFTABLES || m.kind&0xff == unix.NFT_MSG_NEWGEN || len(m.data) < 4 ||
		m.data[0] != unix.NFPROTO_INET {
		return false
	}
	kind, name, _, ok := nextAttr(m.data[4:])
	return ok && kind == unix.NFTA_TABLE_NAME && text(name) == TableName
}
