package cni_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"go.uber.org/zap"

	"github.com/manxnet/manx/cni"
	"github.com/manxnet/manx/cni/server"
	"github.com/manxnet/manx/integration/namespace"
)

// daemon serves a plugin's requests in manxd's place, over a real socket.
type daemon struct {
	t         *testing.T
	host, pod string // network namespaces
	dir       string
	// add responds to Add; finish is the error of Finish.
	add    func(*daemon, *cni.Request) *cni.Response
	finish *types.Error

	mu    sync.Mutex
	steps []cni.Step
	// result returns the result of Finish. It may be nil, as for a manxd that does not know it.
	result func(*cni.Config, *cni.Request) (string, error)
}

func newDaemon(t *testing.T, add func(*daemon, *cni.Request) *cni.Response, finish *types.Error) *daemon {
	t.Helper()
	d := &daemon{t: t, host: namespace.New(t, "mxcnih"), pod: namespace.New(t, "mxcnip"), dir: t.TempDir(),
		add: add, finish: finish}
	l, err := server.Listen(filepath.Join(d.dir, cni.SocketName))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = server.New(d, zap.NewNop()).Serve(ctx, l) }()
	t.Cleanup(func() { cancel(); <-done })
	return d
}

func (d *daemon) Call(_ context.Context, q *cni.Request) (*cni.Response, error) {
	d.mu.Lock()
	d.steps = append(d.steps, q.Step)
	result := d.result
	d.mu.Unlock()
	r := &cni.Response{Version: cni.ProtocolVersion, Attachment: &cni.Attachment{}}
	switch q.Step {
	case cni.StepAdd:
		return d.add(d, q), nil
	case cni.StepFinish:
		r.Error = d.finish
		if result != nil {
			conf, err := cni.ParseConfig(q.Config)
			if err == nil {
				r.Result, err = result(conf, q)
			}
			return r, err
		}
	}
	return r, nil
}

func (d *daemon) received(step cni.Step) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Contains(d.steps, step)
}

// attachment is the response to Add; early is the part of it that is known before.
func attachment() *cni.Attachment {
	return &cni.Attachment{HostIf: "cali1", MAC: "02:00:00:00:00:01", MTU: 1400,
		Addresses: []netip.Addr{netip.MustParseAddr("10.65.0.1")},
		Routes:    []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")},
		Assigned:  []netip.Prefix{netip.MustParsePrefix("10.65.0.1/26")}}
}

func earlyAttachment() *cni.Attachment {
	a := attachment()
	a.Addresses, a.Assigned, a.IPv4 = nil, nil, true
	return a
}

func (d *daemon) ip(args ...string) string {
	out, err := exec.Command("ip", args...).CombinedOutput()
	if err != nil {
		d.t.Errorf("ip %v: %v: %s", args, err, out)
	}
	return string(out)
}

// interfaces lists the names and MTUs of both namespaces' interfaces.
func (d *daemon) interfaces() string {
	var list []string
	for _, ns := range []string{d.host, d.pod} {
		var links []struct {
			IfName string
			MTU    int
		}
		if err := json.Unmarshal([]byte(d.ip("-n", ns, "-json", "link")), &links); err != nil {
			d.t.Error(err)
		}
		for _, l := range links {
			if l.IfName != "lo" {
				list = append(list, fmt.Sprint(l.IfName, " ", l.MTU))
			}
		}
	}
	return strings.Join(list, ", ")
}

// call calls the plugin as a runtime does.
func (d *daemon) call(do func(skel.CNIFuncs, *skel.CmdArgs) error) (result string, err error) {
	d.t.Helper()
	conf, err := json.Marshal(map[string]any{"cniVersion": "1.0.0", "name": "net", "type": "calico",
		"ipam": map[string]any{"type": "calico-ipam"}, "manxd_socket": filepath.Join(d.dir, "manxd.sock")})
	if err != nil {
		d.t.Fatal(err)
	}
	var out bytes.Buffer
	p := &cni.Plugin{Getenv: func(string) string { return "" }, Stdout: &out,
		Backend: func(c *cni.Config) cni.Backend { return cni.Socket(c.Socket()) }}
	if inside := namespace.Inside(d.host, func() {
		err = do(p.Funcs(false), &skel.CmdArgs{ContainerID: "c1", Netns: "/run/netns/" + d.pod, IfName: "eth0",
			StdinData: conf})
	}); inside != nil {
		d.t.Fatal(inside)
	}
	return out.String(), err
}

func (d *daemon) attach() (string, error) {
	return d.call(func(f skel.CNIFuncs, a *skel.CmdArgs) error { return f.Add(a) })
}

const wired = "cali1 1400, eth0 1400"

// The interface exists, without an address, before the response with the addresses: the test holds the response until
// then.
func TestInterfaceIsMadeWhileAddressesAreAssigned(t *testing.T) {
	d := newDaemon(t, func(d *daemon, q *cni.Request) *cni.Response {
		q.Begin(earlyAttachment())
		d.wait(wired)
		if have := d.ip("-n", d.pod, "-4", "addr", "show", "dev", "eth0"); have != "" {
			t.Errorf("before the answer the container has %s", have)
		}
		return &cni.Response{Version: cni.ProtocolVersion, Attachment: attachment()}
	}, nil)
	result, err := d.attach()
	if err != nil || !strings.Contains(result, `"10.65.0.1/32"`) {
		t.Errorf("%s, %v", result, err)
	}
	if have := d.ip("-n", d.pod, "-4", "addr", "show", "dev", "eth0"); !strings.Contains(have, "10.65.0.1/32") {
		t.Errorf("the container has %q", have)
	}
	if have := d.interfaces(); have != wired {
		t.Errorf("interfaces are %s", have)
	}
	if d.received(cni.StepAbort) || !d.received(cni.StepFinish) {
		t.Errorf("steps are %v", d.steps)
	}
}

// wait waits for the interfaces of the plugin, which may still run.
func (d *daemon) wait(want string) {
	for d.interfaces() != want {
		if d.t.Context().Err() != nil || d.t.Failed() {
			return
		}
	}
}

// Nothing of the interface remains after any failure.
func TestInterfaceGoesWithAFailedAdd(t *testing.T) {
	for name, c := range map[string]struct {
		respond func() *cni.Response
		finish  *types.Error
		want    string
		aborts  bool
	}{
		"the block is not written": {respond: func() *cni.Response {
			return &cni.Response{Version: cni.ProtocolVersion,
				Error: types.NewError(11, "the block is not written", "")}
		}, want: "the block is not written"},
		"manxd is killed": {respond: func() *cni.Response {
			runtime.Goexit() // which closes the connection
			return nil
		}, want: cni.ErrNoAnswer.Error()},
		"the answer is without attachment": {respond: func() *cni.Response {
			return &cni.Response{Version: cni.ProtocolVersion}
		}, want: "no attachment"},
		"an address that is routed elsewhere": {respond: func() *cni.Response {
			a := attachment()
			a.Addresses = []netip.Addr{netip.MustParseAddr("10.65.0.9")}
			return &cni.Response{Version: cni.ProtocolVersion, Attachment: a}
		}, want: "already routes that address to lo", aborts: true},
		"the endpoint is not written": {respond: func() *cni.Response {
			return &cni.Response{Version: cni.ProtocolVersion, Attachment: attachment()}
		}, finish: types.NewError(11, "the endpoint is not written", ""), want: "the endpoint is not written",
			aborts: true},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDaemon(t, func(d *daemon, q *cni.Request) *cni.Response {
				q.Begin(earlyAttachment())
				d.wait(wired)
				return c.respond()
			}, c.finish)
			d.ip("-n", d.host, "route", "add", "10.65.0.9", "dev", "lo", "metric", "1024")
			if _, err := d.attach(); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("ADD: %v, want %s", err, c.want)
			}
			if have := d.interfaces(); have != "" {
				t.Errorf("left behind: %s", have)
			}
			if d.received(cni.StepAbort) != c.aborts {
				t.Errorf("steps are %v", d.steps)
			}
		})
	}
}

// The final response decides: an interface with other parameters is replaced. An older manxd sends no early response.
func TestAnswerCounts(t *testing.T) {
	for name, begin := range map[string]func(*cni.Request){
		"another MTU":    func(q *cni.Request) { a := earlyAttachment(); a.MTU = 1300; q.Begin(a) },
		"another name":   func(q *cni.Request) { a := earlyAttachment(); a.HostIf = "cali2"; q.Begin(a) },
		"another family": func(q *cni.Request) { a := earlyAttachment(); a.IPv4, a.IPv6 = false, true; q.Begin(a) },
		"impossible":     func(q *cni.Request) { a := earlyAttachment(); a.MTU = 70000; q.Begin(a) },
		"no MAC":         func(q *cni.Request) { a := earlyAttachment(); a.MAC = "x"; q.Begin(a) },
		"no early one":   func(*cni.Request) {},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDaemon(t, func(_ *daemon, q *cni.Request) *cni.Response {
				begin(q)
				return &cni.Response{Version: cni.ProtocolVersion, Attachment: attachment()}
			}, nil)
			if _, err := d.attach(); err != nil {
				t.Error(err)
			}
			if have := d.interfaces(); have != wired {
				t.Errorf("interfaces are %s", have)
			}
		})
	}
}

// An older plugin does not request an early response, and gets none.
func TestPluginOfBefore(t *testing.T) {
	d := newDaemon(t, func(_ *daemon, q *cni.Request) *cni.Response {
		if q.Begin != nil {
			t.Error("an early answer can be sent")
		}
		return &cni.Response{Version: cni.ProtocolVersion, Attachment: attachment()}
	}, nil)
	r, err := cni.Socket(filepath.Join(d.dir, cni.SocketName)).Call(t.Context(), &cni.Request{
		Version: cni.ProtocolVersion, Step: cni.StepAdd, Config: []byte("{}")})
	if err != nil || r.Attachment == nil || r.Attachment.HostIf != "cali1" {
		t.Errorf("%+v, %v", r, err)
	}
}

func (d *daemon) setResult(result func(*cni.Config, *cni.Request) (string, error)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.result = result
}

// The result is the same, whether manxd has it or the plugin makes it.
func TestResultOfManxd(t *testing.T) {
	add := func(*daemon, *cni.Request) *cni.Response {
		return &cni.Response{Version: cni.ProtocolVersion, Attachment: attachment()}
	}
	d := newDaemon(t, add, nil)
	want, err := d.attach()
	if err != nil || want == "" {
		t.Fatalf("%s, %v", want, err)
	}
	d.setResult(cni.ResultText)
	if have, err := d.attach(); err != nil || have != want {
		t.Errorf("%s, %v, want %s", have, err, want)
	}
	d.setResult(func(*cni.Config, *cni.Request) (string, error) { return "{}", nil })
	if have, err := d.attach(); err != nil || have != "{}" {
		t.Errorf("%s, %v, want the result of manxd", have, err)
	}
}

// A faulty configuration is refused with manxd's words.
func TestManxdValidatesTheConfiguration(t *testing.T) {
	refused := types.NewError(types.ErrInvalidNetworkConfig, "network net is not configured right", "mtu")
	d := newDaemon(t, func(*daemon, *cni.Request) *cni.Response {
		return &cni.Response{Version: cni.ProtocolVersion, Error: refused}
	}, nil)
	if result, err := d.attach(); err == nil || !strings.Contains(err.Error(), refused.Msg) || result != "" {
		t.Errorf("%s, %v", result, err)
	}
	if have := d.interfaces(); have != "" {
		t.Errorf("interfaces are %s", have)
	}
}
