package lab

import (
	"bufio"
	"errors"
	"net/netip"
	"regexp"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/manxnet/manx/integration/namespace"
)

// Ping sends a few echo requests from a namespace and fails unless one is answered.
func Ping(ns string, to netip.Addr) error {
	_, err := command("ip", "netns", "exec", ns, "ping", "-n", "-q", "-c", "2", "-i", "0.1", "-W", "1", to.String())
	return err
}

// Flow is a running stream of pings that counts losses.
type Flow struct {
	p        *Process
	answered map[int]bool
	count    atomic.Int64
}

var icmpSeq = regexp.MustCompile(`icmp_seq=(\d+) ttl=`)

// StartFlow pings every 10 ms until Stop.
func (l *Lab) StartFlow(ns string, to netip.Addr) (*Flow, error) {
	return l.StartFlowEvery(ns, to, 10*time.Millisecond)
}

// StartFlowEvery is StartFlow with another interval. A busy machine sends less often.
func (l *Lab) StartFlowEvery(ns string, to netip.Addr, interval time.Duration) (*Flow, error) {
	f := &Flow{answered: map[int]bool{}}
	cmd := namespace.Command(ns, "ping", "-n", "-i", strconv.FormatFloat(interval.Seconds(), 'f', -1, 64), to.String())
	r, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	f.p = &Process{Name: "ping", cmd: cmd, done: make(chan struct{})}
	go func() {
		defer close(f.p.done)
		for s := bufio.NewScanner(r); s.Scan(); {
			if m := icmpSeq.FindStringSubmatch(s.Text()); m != nil {
				seq, _ := strconv.Atoi(m[1])
				f.answered[seq] = true
				f.count.Add(1)
			}
		}
		f.p.err = cmd.Wait()
	}()
	l.mu.Lock()
	l.processes = append(l.processes, f.p)
	l.mu.Unlock()
	return f, nil
}

// Answered returns how many requests have been answered so far.
func (f *Flow) Answered() int { return int(f.count.Load()) }

// Stop ends the stream and returns how many requests were sent and how many were not answered. Requests after the last
// answer do not count: they were still under way.
func (f *Flow) Stop() (sent, lost int, err error) {
	if err := f.p.Signal(syscall.SIGINT); err != nil {
		return 0, 0, err
	}
	<-f.p.done
	for seq := range f.answered {
		sent = max(sent, seq)
	}
	if sent == 0 {
		return 0, 0, errors.New("no ping was answered")
	}
	return sent, sent - len(f.answered), nil
}
