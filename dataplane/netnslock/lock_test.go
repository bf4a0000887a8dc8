package netnslock

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const (
	nobody = 65534
	// role makes a copy of the test another process: "hold" takes the lock, "squat" binds its name and lets the queue
	// of connections fill, "try" prints the result of an attempt.
	role = "NETNSLOCK_ROLE"
)

func TestMain(m *testing.M) {
	switch r := os.Getenv(role); r {
	case "":
		os.Exit(m.Run())
	case "squat":
		occupyName(os.Getenv("NETNSLOCK_NAME"))
	default:
		l, err := acquire(os.Getenv("NETNSLOCK_NAME"))
		if err != nil {
			fmt.Println("refused:", err)
			return
		}
		fmt.Println("held", l.Squatter)
	}
	_, _ = bufio.NewReader(os.Stdin).ReadString(0)
}

// occupyName binds the name, with a full queue, so that no process can connect to identify it.
func occupyName(name string) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		err = errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: name}), unix.Listen(fd, 0))
	}
	for range 4 {
		if c, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK, 0); err == nil {
			_ = unix.Connect(c, &unix.SockaddrUnix{Name: name})
		}
	}
	fmt.Println("squats", err)
}

// process is a copy of the test.
type process struct {
	*exec.Cmd
	result string
	end    func()
}

func run(t *testing.T, what, name string, attr *syscall.SysProcAttr) *process {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), role+"="+what, "NETNSLOCK_NAME="+name)
	cmd.SysProcAttr = attr
	stdin, err := cmd.StdinPipe()
	must(t, err)
	stdout, err := cmd.StdoutPipe()
	must(t, err)
	cmd.Stderr = os.Stderr
	must(t, cmd.Start())
	line, _ := bufio.NewReader(stdout).ReadString('\n')
	p := &process{Cmd: cmd, result: strings.TrimSpace(line)}
	p.end = sync.OnceFunc(func() { _ = stdin.Close(); _ = cmd.Wait() })
	t.Cleanup(p.end)
	return p
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func unprivileged(t *testing.T) *syscall.SysProcAttr {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to become another user")
	}
	return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
}

// name returns a name that no other test uses.
func name(t *testing.T) string { return fmt.Sprintf("@netnslock-test-%d-%s", os.Getpid(), t.Name()) }

func TestTheSecondIsToldThePIDOfTheFirst(t *testing.T) {
	n := name(t)
	first := run(t, "hold", n, nil)
	if first.result != "held -1" {
		t.Fatal(first.result)
	}
	want := fmt.Sprintf("refused: manxd with pid %d already runs in this network namespace", first.Process.Pid)
	for range 30 { // more than fit in the queue
		if second := run(t, "try", n, nil); second.result != want {
			t.Fatalf("the second prints %q, want %q", second.result, want)
		}
	}
	must(t, first.Process.Kill()) // kill -9
	first.end()
	if second := run(t, "hold", n, nil); second.result != "held -1" {
		t.Errorf("after the first is dead: %q", second.result)
	}
}

func TestOfManyThatStartAtOnceOneGetsIt(t *testing.T) {
	for round := range 5 {
		n := fmt.Sprint(name(t), round)
		var mu sync.Mutex
		var all sync.WaitGroup
		results := map[string]int{}
		for range 12 {
			all.Go(func() {
				p := run(t, "hold", n, nil)
				mu.Lock()
				defer mu.Unlock()
				word, _, _ := strings.Cut(p.result, " ")
				results[word]++
			})
		}
		all.Wait()
		if results["held"] != 1 || results["refused:"] != 11 {
			t.Fatalf("round %d: %v, want one that has it and eleven that are refused", round, results)
		}
	}
}

// An unprivileged user that binds the name first does not keep a daemon from taking the lock. The holder of the lock
// still refuses other daemons.
func TestOtherUsersCannotHoldTheLock(t *testing.T) {
	attr := unprivileged(t)
	n := name(t)
	squatter := run(t, "squat", n, attr)
	if squatter.result != "squats <nil>" {
		t.Fatal(squatter.result)
	}
	first := run(t, "hold", n, nil)
	if first.result != "held 65534" {
		t.Fatalf("beside a squatter: %q", first.result)
	}
	want := fmt.Sprintf("refused: manxd with pid %d already runs", first.Process.Pid)
	if second := run(t, "try", n, nil); !strings.HasPrefix(second.result, want) {
		t.Errorf("beside a squatter and the first: %q, want %q", second.result, want)
	}
	squatter.end()
	if second := run(t, "try", n, nil); !strings.HasPrefix(second.result, want) {
		t.Errorf("the usual name is free again, the first has another: %q, want %q", second.result, want)
	}
	run(t, "squat", n+".guess", attr)
	first.end()
	if second := run(t, "hold", n, nil); second.result != "held -1" {
		t.Errorf("with a squatter on a name with a suffix: %q", second.result)
	}
}

// The lock also holds between users, if one of them administers the network.
func TestRootSeesALockOfAnAdministrator(t *testing.T) {
	attr := unprivileged(t)
	n := name(t)
	attr.AmbientCaps = []uintptr{unix.CAP_NET_ADMIN}
	first := run(t, "hold", n, attr)
	if first.result != "held -1" {
		t.Skip("capabilities cannot be given away here: ", first.result)
	}
	second := run(t, "try", n, nil)
	if want := fmt.Sprintf("refused: manxd with pid %d already runs",
		first.Process.Pid); !strings.HasPrefix(second.result, want) {
		t.Errorf("%q, want %q", second.result, want)
	}
}

// All capabilities in another user namespace are no capability in ours.
func TestAUserNamespaceGivesNoRight(t *testing.T) {
	unprivileged(t)
	n := name(t)
	attr := &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: nobody, Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: nobody, Size: 1}},
		Credential:  &syscall.Credential{}}
	if exec.Command("unshare", "--user", "true").Run() != nil {
		t.Skip("no user namespaces here")
	}
	first := run(t, "hold", n, attr)
	if first.result != "held -1" {
		t.Fatalf("in a user namespace: %q", first.result)
	}
	if second := run(t, "hold", n, nil); second.result != "held 65534" {
		t.Errorf("beside a process in a user namespace: %q", second.result)
	}
}

func TestEachNetworkNamespaceHasItsOwn(t *testing.T) {
	unprivileged(t)
	n := name(t)
	if first := run(t, "hold", n, nil); first.result != "held -1" {
		t.Fatal(first.result)
	}
	for range 2 {
		if p := run(t, "hold", n, &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}); p.result != "held -1" {
			t.Errorf("in another network namespace: %q", p.result)
		}
	}
	if p := run(t, "try", n, &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID}); !strings.HasPrefix(p.result,
		"refused: manxd already runs in this network namespace, in a container") {
		t.Errorf("in a container with the host's network: %q", p.result)
	}
}

func TestReleaseGivesTheLockUp(t *testing.T) {
	n := name(t)
	for range 3 {
		l, err := acquire(n)
		must(t, err)
		var held *HeldError
		if _, err := acquire(n); !errors.As(err, &held) || held.PID != os.Getpid() {
			t.Fatalf("a second one: %v", err)
		}
		must(t, l.Release())
	}
}

// A kernel without sock_diag for unix sockets has the list in /proc, and reports users only to a process that connects.
func TestSocketsAreFoundInProc(t *testing.T) {
	n := name(t)
	l, err := net.Listen("unix", n)
	must(t, err)
	defer l.Close()
	go func() {
		for c, err := l.Accept(); err == nil; c, err = l.Accept() {
			c.Close()
		}
	}()
	find := func(list []owner, err error) owner {
		must(t, err)
		for _, o := range list {
			if o.name == n {
				return o
			}
		}
		t.Fatalf("%s is not listed", n)
		return owner{}
	}
	diag, proc := find(diagSockets()), find(procSockets("/proc/net/unix"))
	if diag.inode != proc.inode || diag.uid != os.Geteuid() || proc.uid != -1 {
		t.Errorf("sock_diag has %+v, /proc %+v", diag, proc)
	}
	deadline := time.Now().Add(20 * time.Second)
	for proc.pid == 0 && time.Now().Before(deadline) {
		proc.identify()
	}
	if proc.pid != os.Getpid() || proc.uid != os.Geteuid() {
		t.Errorf("identified as %+v", proc)
	}
}
