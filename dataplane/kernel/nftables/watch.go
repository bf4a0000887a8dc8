package nftables

import (
	"context"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/dataplane/kernel/netlink"
)

// watchQueue holds the events of a burst, in bytes; an overflow counts as a change.
const watchQueue = 8 << 20

// WatchRules implements Rules.
func (r *Conn) WatchRules(ctx context.Context, handle func()) error {
	s, err := r.subscribe(watchQueue)
	if err != nil {
		return fmt.Errorf("watch nftables: %w", err)
	}
	handle()
	if err := readEvents(ctx, s, handle); err != nil {
		return fmt.Errorf("watch nftables: %w", err)
	}
	return nil
}

// readEvents calls handle when our table was changed, or may have been because events were lost.
func readEvents(ctx context.Context, s *netlink.Socket, handle func()) error {
	changed := false
	return s.Follow(ctx, func(m netlink.Message) { changed = changed || aboutRulesTable(m) },
		func() { changed = true }, func() {
			if changed {
				handle()
			}
			changed = false
		})
}

// subscribe opens a socket that receives the events of others. Those of our own transactions are left out: there are as
// many as there are elements.
func (r *Conn) subscribe(queue int) (*netlink.Socket, error) {
	r.mu.Lock()
	commits := r.commits
	r.mu.Unlock()
	if commits == nil {
		return nil, os.ErrClosed
	}
	s, err := r.open(queue)
	if err != nil {
		return nil, err
	}
	if err = s.Ignore(commits.Port); err != nil {
		err = fmt.Errorf("attach the filter: %w", err)
	} else if err = s.Join(unix.NFNLGRP_NFTABLES); err != nil {
		err = fmt.Errorf("subscribe to nftables: %w", err)
	}
	if err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// aboutRulesTable: all objects of nf_tables have the name of their table as attribute 1.
func aboutRulesTable(m netlink.Message) bool {
	if m.Kind>>8 != unix.NFNL_SUBSYS_NFTABLES || m.Kind&0xff == unix.NFT_MSG_NEWGEN || len(m.Data) < 4 ||
		m.Data[0] != unix.NFPROTO_INET {
		return false
	}
	kind, name, _, ok := netlink.NextAttr(m.Data[4:])
	return ok && kind == unix.NFTA_TABLE_NAME && text(name) == TableName
}
