package kernel

import (
	"bytes"
	"context"
	"errors"
	"os"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// WatchRules implements Rules. Who made a transaction is known by its name, which the kernel tells at the end of it: changes
// by processes of the same name as this one are taken for its own.
func (n *NFT) WatchRules(ctx context.Context, handle func()) error {
	own, err := os.ReadFile("/proc/self/comm")
	if err != nil {
		return err
	}
	c, err := n.socket()
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.JoinGroup(unix.NFNLGRP_NFTABLES); err != nil {
		return classify("subscribe to changes of rules", err)
	}
	defer context.AfterFunc(ctx, func() { _ = c.Close() })()
	handle() // there may have been changes before
	touched := false
	for {
		messages, err := c.Receive()
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, unix.ENOBUFS):
			handle() // something was lost
			continue
		case err != nil:
			return classify("receive changes of rules", err)
		}
		for _, m := range messages {
			if m.Header.Type == nftMessage(unix.NFT_MSG_NEWGEN) {
				g, err := parseGeneration(m.Data)
				if touched && (err != nil || g.process != string(bytes.TrimSpace(own))) {
					handle()
				}
				touched = false
				continue
			}
			touched = touched || ofTable(m)
		}
	}
}

// ofTable tells whether an event is about the table or something in it: the first attribute of each kind of object, NFTA_*_TABLE
// or the table's own name, has the same number.
func ofTable(m netlink.Message) bool {
	if len(m.Data) < 4 || m.Data[0] != unix.NFPROTO_INET {
		return false
	}
	d, err := netlink.NewAttributeDecoder(m.Data[4:])
	if err != nil {
		return false
	}
	for d.Next() {
		if d.Type() == unix.NFTA_TABLE_NAME {
			return d.String() == TableName
		}
	}
	return false
}
