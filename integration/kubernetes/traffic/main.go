// Command traffic counts losses between two pods: it sends pings and TCP requests at a fixed rate until its standard
// input ends, and then prints the Result.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"time"
)

func main() {
	serve := flag.String("serve", "", "answer the TCP requests of others on this address, and do nothing else")
	ping := flag.String("ping", "", "send pings to this address")
	tcp := flag.String("tcp", "", "send TCP requests to this address and port: on new connections, and on "+
		"one that stays")
	interval := flag.Duration("interval", 10*time.Millisecond, "time between two requests")
	flag.Parse()
	if err := run(*serve, *ping, *tcp, *interval); err != nil {
		fmt.Fprintln(os.Stderr, "traffic:", err)
		os.Exit(1)
	}
}

// Result counts the sent and lost requests.
type Result struct {
	Ping        Count `json:"ping"`
	Connections Count `json:"connections"` // a TCP connection for each request
	Stream      Count `json:"stream"`      // requests on one TCP connection
}

// Count of requests, and the first reasons why some failed.
type Count struct {
	Sent    int      `json:"sent"`
	Lost    int      `json:"lost"`
	Reasons []string `json:"reasons,omitempty"`
}

// patience is the time limit of a reply: a packet that TCP sent again is not lost.
const patience = 10 * time.Second

func (c *Count) add(err error) {
	c.Sent++
	if err == nil {
		return
	}
	c.Lost++
	if len(c.Reasons) < 5 {
		c.Reasons = append(c.Reasons, fmt.Sprintf("%s: %v", time.Now().UTC().Format("15:04:05.000"), err))
	}
}

func run(serve, ping, tcp string, interval time.Duration) error {
	if serve != "" {
		return echo(serve)
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	// The senders are independent: one that waits for a reply does not delay the others.
	var r Result
	jobs := map[*Count]func(context.Context, time.Duration) Count{}
	if ping != "" {
		jobs[&r.Ping] = pinger(ping)
	}
	if tcp != "" {
		jobs[&r.Connections] = connector(tcp)
		jobs[&r.Stream] = streamer(tcp)
	}
	done := make(chan struct{})
	for count, job := range jobs {
		go func() {
			*count = job(ctx, interval)
			done <- struct{}{}
		}()
	}
	for range jobs {
		<-done
	}
	return json.NewEncoder(os.Stdout).Encode(r)
}

// echo echoes the data of each connection.
func echo(address string) error {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer c.Close()
			_, _ = io.Copy(c, c)
		}()
	}
}
