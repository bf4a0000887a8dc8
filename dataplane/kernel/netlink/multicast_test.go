package netlink

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// While the messages of a burst are handled, further ones wake up no thread: the socket is in no epoll instance. The
// end of the context wakes up the follower.
func TestMessagesWakeNobodyMeanwhile(t *testing.T) {
	s, err := open(unix.NETLINK_ROUTE, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	fd := s.fd
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- s.Follow(ctx, func(Message) {}, func() {}, func() {}) }()
	time.Sleep(100 * time.Millisecond) // it waits for messages
	files, err := os.ReadDir("/proc/self/fdinfo")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		raw, _ := os.ReadFile("/proc/self/fdinfo/" + f.Name()) // one may have been closed
		for line := range strings.Lines(string(raw)) {
			if strings.HasPrefix(line, "tfd:") && strings.Fields(line)[1] == fmt.Sprint(fd) {
				t.Errorf("the socket is in the epoll instance %s: %s", f.Name(), line)
			}
		}
	}
	cancel()
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("the end of the context does not end it")
	}
}
