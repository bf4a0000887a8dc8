package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
)

// connector makes a connection for each request.
func connector(address string) func(context.Context, time.Duration) Count {
	return func(ctx context.Context, interval time.Duration) (n Count) {
		var mu sync.Mutex
		var all sync.WaitGroup
		sendEvery(ctx, interval, func(uint32) {
			all.Go(func() {
				err := request(address)
				mu.Lock()
				defer mu.Unlock()
				n.add(err)
			})
		})
		all.Wait()
		return n
	}
}

func request(address string) error {
	c, err := net.DialTimeout("tcp", address, patience)
	if err != nil {
		return err
	}
	defer c.Close()
	return exchange(c, 1)
}

// streamer sends all requests on one connection; when the connection breaks it makes another one.
func streamer(address string) func(context.Context, time.Duration) Count {
	return func(ctx context.Context, interval time.Duration) (n Count) {
		var c net.Conn
		sendEvery(ctx, interval, func(seq uint32) {
			var err error
			if c == nil {
				if c, err = net.DialTimeout("tcp", address, patience); err != nil {
					c = nil
					n.add(err)
					return
				}
			}
			if err = exchange(c, seq); err != nil {
				_ = c.Close()
				c = nil
			}
			n.add(err)
		})
		return n
	}
}

// exchange sends a number and waits until it comes back.
func exchange(c net.Conn, seq uint32) error {
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	if err := binary.Write(c, binary.BigEndian, seq); err != nil {
		return err
	}
	var back uint32
	if err := binary.Read(c, binary.BigEndian, &back); err != nil {
		if err == io.EOF {
			return fmt.Errorf("the connection was closed")
		}
		return err
	}
	if back != seq {
		return fmt.Errorf("sent %d and got %d back", seq, back)
	}
	return nil
}

// pinger sends ICMP echo requests. A request without a reply at the end is lost.
func pinger(address string) func(context.Context, time.Duration) Count {
	return func(ctx context.Context, interval time.Duration) (n Count) {
		c, err := icmp.ListenPacket("ip4:icmp", "0.0.0.0")
		if err != nil {
			n.add(err)
			return n
		}
		defer c.Close()
		id := os.Getpid() & 0xffff
		answered := make(chan map[uint32]bool, 1)
		go func() { answered <- readReplies(c, id) }()
		var sent uint32
		var times []time.Time
		to := &net.IPAddr{IP: net.ParseIP(address)}
		sendEvery(ctx, interval, func(seq uint32) {
			body := binary.BigEndian.AppendUint32(nil, seq)
			m := icmp.Message{Type: ipv4.ICMPTypeEcho, Body: &icmp.Echo{ID: id, Seq: int(seq & 0xffff), Data: body}}
			b, err := m.Marshal(nil)
			if err == nil {
				_, err = c.WriteTo(b, to)
			}
			if err != nil && len(n.Reasons) < 5 {
				n.Reasons = append(n.Reasons, err.Error()) // counted as one without a reply
			}
			sent, times = seq, append(times, time.Now().UTC())
		})
		_ = c.SetReadDeadline(time.Now().Add(2 * time.Second))
		got := <-answered
		n.Sent, n.Lost = int(sent), int(sent)-len(got)
		for seq := uint32(1); seq <= sent && len(n.Reasons) < 5; seq++ {
			if !got[seq] {
				n.Reasons = append(n.Reasons, fmt.Sprintf("no answer to number %d of %d, of %s", seq, sent,
					times[seq-1].Format("15:04:05.000")))
			}
		}
		return n
	}
}

// readReplies returns the numbers of the echo replies that come before the read deadline.
func readReplies(c *icmp.PacketConn, id int) map[uint32]bool {
	got := map[uint32]bool{}
	buf := make([]byte, 1500)
	for {
		size, _, err := c.ReadFrom(buf)
		if err != nil {
			return got
		}
		m, err := icmp.ParseMessage(1, buf[:size])
		if err != nil || m.Type != ipv4.ICMPTypeEchoReply {
			continue
		}
		if e, ok := m.Body.(*icmp.Echo); ok && e.ID == id && len(e.Data) == 4 {
			got[binary.BigEndian.Uint32(e.Data)] = true
		}
	}
}

// sendEvery calls send with 1, 2, 3 and so on, until the context ends. Where send takes longer than the interval, it is
// called less often.
func sendEvery(ctx context.Context, interval time.Duration, send func(seq uint32)) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for seq := uint32(1); ; seq++ {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			send(seq)
		}
	}
}
