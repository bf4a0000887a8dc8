package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	manxv1 "github.com/manxnet/manx/proto/manx/v1"
)

// runInNamespaces runs the test again in a process with network and mount namespaces of its own. The variable is set in
// its environment.
func runInNamespaces(t *testing.T, variable string) {
	if os.Getuid() != 0 {
		t.Skip("namespaces need root")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip("iproute2 is not installed")
	}
	cmd := exec.Command(os.Args[0], "-test.v", "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), variable+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS}
	out, err := cmd.CombinedOutput()
	if err == nil && strings.Contains(string(out), "--- SKIP: "+t.Name()+" ") {
		t.Skipf("skipped in its namespaces:\n%s", out) // a program is missing, for instance
	}
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Errorf("%v\n%s", err, out)
	}
}

// daemonForTest returns the daemon of a cluster of one node, with its files in dir. The test has namespaces of its own,
// which get an uplink.
func daemonForTest(t *testing.T, dir string) *daemon {
	t.Helper()
	must(t, unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
	must(t, unix.Mount("tmpfs", "/run", "tmpfs", 0, "mode=755"))
	for _, args := range []string{"link set lo up", "link add eth0 type veth peer name eth0p", "link set eth0p up",
		"link set eth0 up", "addr add 192.0.2.1/24 dev eth0"} {
		if out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput(); err != nil {
			t.Fatalf("ip %s: %v: %s", args, err, out)
		}
	}
	var o options
	fs := pflag.NewFlagSet("manxd", pflag.ContinueOnError)
	o.flags(fs)
	must(t, fs.Parse([]string{"--node-name=n1", "--run-dir=" + dir + "/run", "--data-dir=" + dir + "/data",
		"--nodename-file=" + dir + "/nodename", "--mtu-file=" + dir + "/mtu", "--endpoint-status-path-prefix=" + dir}))
	must(t, o.check())
	d, err := newDaemon(t.Context(), o, nil)
	must(t, err)
	return d
}

// operator reads a daemon as its users do.
type operator struct {
	t    *testing.T
	conn *grpc.ClientConn
}

// await reads a text until it contains all of want.
func (o operator) await(what string, read func() string, want ...string) {
	o.t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		text, missing := read(), ""
		for _, x := range want {
			if !strings.Contains(text, x) {
				missing = x
			}
		}
		if missing == "" {
			return
		}
		if time.Now().After(end) {
			o.t.Fatalf("%s: no %q in\n%s", what, missing, text)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// get reads a page of the daemon's HTTP port.
func get(path string) string {
	r, err := http.Get("http://127.0.0.1:9099" + path)
	if err != nil {
		return err.Error()
	}
	defer r.Body.Close()
	body, _ := io.ReadAll(r.Body)
	return string(body)
}

func (o operator) notices() string {
	r, err := manxv1.NewManxClient(o.conn).ListNotices(o.t.Context(), &manxv1.ListNoticesRequest{})
	text := fmt.Sprintln(err)
	for _, n := range r.GetNotices() {
		text += n.GetSubject() + ": " + n.GetText() + "\n"
	}
	return text
}
