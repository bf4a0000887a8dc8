package server

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/manxnet/manx/cni"
)

const clientEnv = "MANX_TEST_CNI_CLIENT"

// TestMain lets the test binary be a client, as another user.
func TestMain(m *testing.M) {
	if path := os.Getenv(clientEnv); path != "" {
		r, err := cni.Socket(path).Call(context.Background(), &cni.Request{Version: 1, Step: cni.StepStatus,
			Config: []byte("{}")})
		if err != nil {
			fmt.Println("error:", err)
		} else {
			fmt.Println("answer:", r.Error)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// backend records the steps of its requests, and responds as the test configures.
type backend struct {
	mu      sync.Mutex
	steps   []cni.Step
	respond func(context.Context, *cni.Request) *cni.Response
}

func (b *backend) Call(ctx context.Context, q *cni.Request) (*cni.Response, error) {
	b.mu.Lock()
	b.steps = append(b.steps, q.Step)
	b.mu.Unlock()
	if b.respond != nil {
		return b.respond(ctx, q), nil
	}
	return &cni.Response{Version: 1}, nil
}

func (b *backend) count(step cni.Step) (n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range b.steps {
		if s == step {
			n++
		}
	}
	return n
}

func serve(t *testing.T, b *backend) (path string) {
	t.Helper()
	return serveWith(t, New(b, zap.NewNop()))
}

func serveWith(t *testing.T, s *Server) (path string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("the server serves root alone")
	}
	dir, err := os.MkdirTemp("", "manx-cni")
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path = filepath.Join(dir, cni.SocketName)
	l, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	return path
}

func requestStatus(t *testing.T, path string) {
	t.Helper()
	r, err := cni.Socket(path).Call(t.Context(), &cni.Request{Version: 1, Step: cni.StepStatus, Config: []byte("{}")})
	if err != nil || r.Error != nil {
		t.Errorf("%v, %v", r, err)
	}
}

// A daemon that does not run is noticed in time, also while the kernel accepts connections for it. One that has read
// the request may take its time.
func TestSilentDaemon(t *testing.T) {
	t.Run("reads nothing", func(t *testing.T) {
		t.Parallel()
		path := filepath.Join(t.TempDir(), "cni.sock")
		l, err := net.Listen("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		began := time.Now()
		_, err = cni.Socket(path).Call(t.Context(), &cni.Request{Version: 1, Step: cni.StepAdd, Config: []byte("{}")})
		if err == nil || errors.Is(err, cni.ErrNoAnswer) ||
			!strings.Contains(err.Error(), "manxd does not read requests") {
			t.Errorf("error %v", err)
		}
		if d := time.Since(began); d > 30*time.Second {
			t.Errorf("after %s", d)
		}
	})
	t.Run("answers late", func(t *testing.T) {
		t.Parallel()
		requestStatus(t, serve(t, &backend{respond: func(context.Context, *cni.Request) *cni.Response {
			time.Sleep(12 * time.Second) // longer than a request may be unread
			return &cni.Response{Version: 1}
		}}))
	})
}

// Another user can neither connect nor get a response, even if the mode of the socket allows it.
func TestOtherUsersAreRefused(t *testing.T) {
	b := &backend{}
	path := serve(t, b)
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("socket: %v, %v", info, err)
	}
	program := filepath.Join(filepath.Dir(path), "client")
	content, err := os.ReadFile(os.Args[0])
	if err == nil {
		err = os.WriteFile(program, content, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	nobody := func() string {
		cmd := exec.Command(program)
		cmd.Env = []string{clientEnv + "=" + path}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return string(out)
	}
	if out := nobody(); !strings.Contains(out, "permission denied") {
		t.Errorf("nobody: %s", out)
	}
	if err := os.Chmod(path, 0o666); err != nil {
		t.Fatal(err)
	}
	if out := nobody(); !strings.Contains(out, "answer: user 65534 may not use this socket") {
		t.Errorf("nobody, with the socket open to everybody: %s", out)
	}
	if n := b.count(cni.StepStatus); n != 0 {
		t.Errorf("%d questions came through", n)
	}
	requestStatus(t, path)
}

// A request that is too long, incomplete or malformed is refused with a reason, at no cost for other clients.
func TestBadQuestions(t *testing.T) {
	b := &backend{}
	path := serve(t, b)
	for name, c := range map[string]struct {
		send string
		want string
	}{
		"oversized":   {string(binary.BigEndian.AppendUint32(nil, cni.MaxFrame+1)), "want at most"},
		"huge":        {"\xff\xff\xff\xff", "want at most"},
		"cut off":     {"\x00\x00\x00\x09{\"ver", "unexpected EOF"},
		"no JSON":     {"\x00\x00\x00\x03abc", "invalid character"},
		"nothing":     {"", "EOF"},
		"other types": {"\x00\x00\x00\x0f{\"version\":\"x\"}", "cannot unmarshal"},
	} {
		conn, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(conn, c.send)
		_ = conn.(*net.UnixConn).CloseWrite()
		r := &cni.Response{}
		if err := cni.ReadFrame(conn, r); err != nil || r.Error == nil || !strings.Contains(r.Error.Msg, c.want) {
			t.Errorf("%s: %+v, %v, want %q", name, r.Error, err, c.want)
		}
		conn.Close()
	}
	requestStatus(t, path)
}

// Clients that send nothing do not delay others. Above the limit they are refused, and may try again.
func TestSilentClients(t *testing.T) {
	path := serve(t, &backend{})
	var conns []net.Conn
	defer func() {
		for _, c := range conns {
			c.Close()
		}
	}()
	for range maxConnections - 1 {
		c, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, c)
	}
	requestStatus(t, path)
	refused := false
	// Some of the others may just have been closed.
	for end := time.Now().Add(time.Minute); !refused && time.Now().Before(end); {
		c, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, c)
		_ = c.SetReadDeadline(time.Now().Add(2 * time.Second))
		r := &cni.Response{}
		if cni.ReadFrame(c, r) == nil && r.Error != nil && r.Error.Code == 11 {
			refused = true
		}
	}
	if !refused {
		t.Errorf("more than %d connections are served", maxConnections)
	}
}

// The end of a killed client cancels its call; the addresses of an ADD without a client are released.
func TestAClientThatGoesAway(t *testing.T) {
	entered, left := make(chan struct{}), make(chan error, 1)
	b := &backend{}
	b.respond = func(ctx context.Context, q *cni.Request) *cni.Response {
		if q.Step == cni.StepAdd {
			close(entered)
			<-ctx.Done()
			left <- ctx.Err()
			return &cni.Response{Version: 1, Attachment: &cni.Attachment{HostIf: "cali1"}}
		}
		return &cni.Response{Version: 1}
	}
	path := serve(t, b)
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	if err := cni.WriteFrame(conn, &cni.Request{Version: 1, Step: cni.StepAdd, Config: []byte("{}")}); err != nil {
		t.Fatal(err)
	}
	<-entered
	conn.Close()
	select {
	case err := <-left:
		if !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Fatal("the call goes on")
	}
	for end := time.Now().Add(time.Minute); b.count(cni.StepAbort) == 0; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("nothing was taken back")
		}
	}
}
