package dataplane

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"testing"

	"go.uber.org/zap"

	"github.com/manxnet/manx/dataplane/kernel/tc"
	"github.com/manxnet/manx/datastore/model"
)

const megabit = 1_000_000

func limitedPod(q *model.QoSControls) model.Set {
	o := endpointObject("node--1-k8s-web-eth0", "node-1", "cali1", "10.244.1.7/32")
	o.Value.(*model.WorkloadEndpoint).Spec.QoSControls = q
	return model.NewSet(nodeObject("node-1", "10.1.0.5/24", ""), o)
}

// tc is the output of tc(8), without the parts that differ from run to run.
func (h *host) tc(args string) string {
	h.t.Helper()
	if _, err := exec.LookPath("tc"); err != nil {
		h.t.Skip("tc is not installed")
	}
	out := run(h.t, append([]string{"tc", "-n", h.name}, strings.Fields(args)...)...)
	return strings.TrimSpace(regexp.MustCompile(` refcnt \d+| +(\n|$)`).ReplaceAllString(out, "$1"))
}

// connectedPod is a pod in a namespace of its own, with an iperf3 server.
func (h *host) connectedPod() {
	h.t.Helper()
	if _, err := exec.LookPath("iperf3"); err != nil {
		h.t.Skip("iperf3 is not installed")
	}
	pod := bareHost(h.t)
	h.ip("link add cali1 type veth peer name eth0 netns " + pod.name)
	h.ip("addr add 169.254.1.1/32 dev cali1")
	h.ip("link set cali1 up")
	pod.ip("addr add 10.244.1.7/32 dev eth0")
	pod.ip("link set eth0 up")
	pod.ip("route add 169.254.1.1/32 dev eth0")
	pod.ip("route add default via 169.254.1.1")
	server := exec.Command("ip", "netns", "exec", pod.name, "iperf3", "-s")
	if err := server.Start(); err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { _ = server.Process.Kill(); _ = server.Wait() })
	waitFor(h.t, "iperf3 to listen", func() bool {
		return exec.Command("ip", "netns", "exec", pod.name, "sh", "-c", "ss -tln | grep -q :5201").Run() == nil
	})
}

// sent returns the number of bytes that the queue of a device has sent.
func (h *host) sent(dev string) (bytes int) {
	h.t.Helper()
	_, text, _ := strings.Cut(h.tc("-s qdisc show dev "+dev), " Sent ")
	if _, err := fmt.Sscanf(text, "%d bytes", &bytes); err != nil {
		h.t.Fatal(err)
	}
	return bytes
}

// rate returns the bits per second that reach the pod, or with "-R" those from it.
func (h *host) rate(options ...string) float64 {
	h.t.Helper()
	out := run(h.t, append([]string{"ip", "netns", "exec", h.name, "iperf3", "-c", "10.244.1.7", "-B", "10.1.0.5", "-t",
		"1", "-J"}, options...)...)
	var report struct {
		End struct {
			Received struct {
				Rate float64 `json:"bits_per_second"`
			} `json:"sum_received"`
		} `json:"end"`
	}
	if err := json.Unmarshal([]byte(out), &report); err != nil {
		h.t.Fatal(err)
	}
	h.t.Logf("%v: %.1f Mbit/s", options, report.End.Received.Rate/megabit)
	return report.End.Received.Rate
}

// rateOf measures again if the rate is lower than expected: other load on this machine may be the cause.
func (h *host) rateOf(least float64, options ...string) (rate float64) {
	h.t.Helper()
	for range 5 {
		if rate = h.rate(options...); rate >= least {
			break
		}
	}
	return rate
}

// The limits of a workload hold in their direction, survive a restart unchanged, follow changes, and are removed.
func TestBandwidthIsLimited(t *testing.T) {
	h := newHost(t)
	h.connectedPod()
	skipWithoutShaping(t, KernelOf(h.open()))
	start := func() (*HostAgent, func()) {
		a := New(Config{Kernel: KernelOf(h.open()), NodeName: "node-1", Logger: zap.NewNop()})
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- a.Run(ctx) }()
		stop := sync.OnceFunc(func() { cancel(); <-done })
		t.Cleanup(stop)
		return a, stop
	}
	device := tc.RedirectDevice("cali1")
	queues := func(dev string) string { return h.tc("qdisc show dev " + dev) }
	exists := func(dev string) bool { return exec.Command("ip", "-n", h.name, "link", "show", dev).Run() == nil }
	const limited = "qdisc tbf 6d78: root rate 10Mbit burst 100000b lat 25ms"

	a, stop := start()
	a.set(limitedPod(nil))
	h.eventually("-4", "default via 10.1.0.1 dev eth0", "10.244.1.7 dev cali1 proto 80 scope link metric 1024")
	if queues("cali1") != "qdisc noqueue 0: root" {
		t.Fatalf("there is a limit: %s", queues("cali1"))
	}
	if to, from := h.rate(), h.rate("-R"); to < 40*megabit || from < 40*megabit {
		t.Skipf("this machine does not reach what is to be limited: %.0f and %.0f bits per second", to, from)
	}

	a.set(limitedPod(&model.QoSControls{IngressBandwidth: 10 * megabit, IngressBurst: 800_000}))
	waitFor(t, "the limit to the pod", func() bool { return queues("cali1") == limited })
	if to, from := h.rate(), h.rateOf(20*megabit, "-R", "-b", "40M"); to > 20*megabit || from < 20*megabit {
		t.Errorf("%.0f bits per second to the pod, which is limited, and %.0f from it", to, from)
	}

	a.set(limitedPod(&model.QoSControls{EgressBandwidth: 10 * megabit, EgressBurst: 800_000}))
	waitFor(t, "the limit from the pod", func() bool {
		return queues("cali1") == "qdisc noqueue 0: root\nqdisc ingress ffff: parent ffff:fff1 ----------------" &&
			exists(device) && queues(device) == limited
	})
	if to, from := h.rateOf(20*megabit, "-b", "40M"), h.rate("-R"); to < 20*megabit || from > 20*megabit {
		t.Errorf("%.0f bits per second to the pod, and %.0f from it, which is limited", to, from)
	}

	stop()
	counted := h.sent(device)
	a, _ = start()
	a.set(limitedPod(&model.QoSControls{EgressBandwidth: 10 * megabit, EgressBurst: 800_000}))
	a.synced(true, true)
	settle(t, a)
	if now := h.sent(device); now < counted || counted == 0 {
		t.Errorf("a restart has replaced the limit: it has counted %d bytes, and %d before", now, counted)
	}
	h.ip("link del " + device)
	waitFor(t, "the device that someone removed", func() bool { return exists(device) && queues(device) == limited })
	if from := h.rate("-R"); from > 20*megabit {
		t.Errorf("%.0f bits per second from the pod after the repair", from)
	}

	a.set(limitedPod(nil))
	waitFor(t, "the limits to go", func() bool { return queues("cali1") == "qdisc noqueue 0: root" && !exists(device) })
	if from := h.rateOf(40*megabit, "-R"); from < 40*megabit {
		t.Errorf("%.0f bits per second from the pod without a limit", from)
	}
}

func TestCleanupEndsLimits(t *testing.T) {
	h := newHost(t)
	h.pod("cali1")
	k := KernelOf(h.open())
	skipWithoutShaping(t, k)
	for device, s := range map[string]tc.Shape{
		"cali1": {TokenBucket: tc.TokenBucket{Rate: 1e6, Buffer: 1e6, Limit: 1e5}},
		tc.RedirectDevice("cali1"): {From: "cali1", TokenBucket: tc.TokenBucket{Rate: 1e6, Buffer: 1e6,
			Limit: 1e5}},
	} {
		if err := k.SetShape(device, s); err != nil {
			t.Fatal(err)
		}
	}
	if n, err := Cleanup(k); n != 2 || err != nil {
		t.Errorf("removed %d, %v; want 2", n, err)
	}
	if left := h.tc("qdisc show dev cali1"); left != "qdisc noqueue 0: root" {
		t.Errorf("left: %s", left)
	}
}

// skipWithoutShaping skips a test on a kernel without shaping.
func skipWithoutShaping(t *testing.T, k Kernel) {
	t.Helper()
	const device = "bwcaliprobe"
	s := tc.Shape{From: "eth0", TokenBucket: tc.TokenBucket{Rate: 1e6, Buffer: 1e6, Limit: 1e5}}
	err := k.SetShape(device, s)
	if errors.Is(err, tc.ErrNoShaping) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := k.RemoveShape(device, s); err != nil {
		t.Fatal(err)
	}
}
