package listen

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/manxnet/manx/daemon/part"
	"github.com/manxnet/manx/proto/server"
)

// A taken port is served as soon as it is free; until then a notice has the reason, and the node stays ready. A failed
// serve function is called again.
func TestPortThatIsTaken(t *testing.T) {
	other, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := other.Addr().String()
	calls := make(chan net.Listener)
	p := NewPort("some-listen", address, func(ctx context.Context, l net.Listener) error {
		defer l.Close()
		calls <- l
		if <-calls != nil {
			return errors.New("no luck")
		}
		<-ctx.Done()
		return nil
	})
	ctx, cancel := context.WithCancel(t.Context())
	group, control := part.NewGroup(zap.NewNop(), p), server.New(server.Config{Log: zap.NewNop()})
	group.Show(control)
	ended := make(chan error, 1)
	go func() { ended <- group.Run(ctx) }()
	notice := func(want string) {
		t.Helper()
		for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
			list := control.Notices()
			if len(list) == 0 && want == "" || len(list) == 1 && list[0].Topic == "daemon" &&
				list[0].Subject == "--some-listen="+address && strings.Contains(list[0].Text, want) && want != "" {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("notices are %v, want %q", list, want)
			}
		}
	}
	notice("not served until the port is free: another process listens on it")
	if _, checks := control.Ready(); len(checks) != 3 {
		t.Errorf("checks are %v", checks)
	}
	other.Close()
	l := <-calls // it listens
	notice("")
	calls <- l
	notice("not served, tried again: no luck")
	<-calls
	calls <- nil
	notice("")
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if NewPort("some-listen", "", nil) != nil {
		t.Error("without an address there is a part")
	}
}
