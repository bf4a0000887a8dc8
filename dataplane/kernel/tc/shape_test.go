package tc

import (
	"errors"
	"maps"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/kernel/nettest"
)

// tc is the output of tc(8) about the queues of an interface, without the parts that differ from run to run.
func tc(t *testing.T, ns string, args ...string) string {
	t.Helper()
	if _, err := exec.LookPath("tc"); err != nil {
		t.Skip("tc is not installed")
	}
	out := nettest.Run(t, append([]string{"tc", "-n", ns}, args...)...)
	out = regexp.MustCompile(
		`(?m) (refcnt \d+|index \d+ ref \d+ bind \d+|chain \d+|\(rule hit.*\)|not_in_hw) *`).ReplaceAllString(out, " ")
	var lines []string
	for line := range strings.Lines(out) {
		lines = append(lines, strings.Join(strings.Fields(line), " "))
	}
	return strings.TrimSpace(strings.Join(lines, "\n"))
}

// skipWithout skips a test whose kernel lacks something.
func skipWithout(t *testing.T, err error) {
	t.Helper()
	if errors.Is(err, ErrNoShaping) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func wantShapes(t *testing.T, c *Conn, want map[string]Shape) {
	t.Helper()
	if have := mustList(t, c); !maps.Equal(have, want) {
		t.Fatalf("limits are %+v, want %+v", have, want)
	}
}

var (
	// 10 Mbit/s, 100 kB of burst.
	tenMegabit = TokenBucket{Rate: 1_250_000, Buffer: 1_250_000, Limit: 131_250}
	// 80 Gbit/s with a peak of 800 Gbit/s: more than 32 bits of bytes.
	hugeRate = TokenBucket{Rate: 10_000_000_000, Buffer: 1563, Limit: 4_000_000, PeakRate: 100_000_000_000,
		PeakBuffer: 2}
)

func TestShapeOfWhatIsSent(t *testing.T) {
	ns, c := connection(t)
	wantShapes(t, c, map[string]Shape{})
	skipWithout(t, c.SetShape("e0", Shape{TokenBucket: tenMegabit}))
	wantShapes(t, c, map[string]Shape{"e0": {TokenBucket: tenMegabit}})
	if have, want := tc(t, ns, "qdisc", "show", "dev", "e0"),
		"qdisc tbf 6d78: root rate 10Mbit burst 100000b lat 25ms"; have != want {
		t.Errorf("tc prints %q, want %q", have, want)
	}
	for range 2 { // changed, and set to the same value
		if err := c.SetShape("e0", Shape{TokenBucket: hugeRate}); err != nil {
			t.Fatal(err)
		}
		wantShapes(t, c, map[string]Shape{"e0": {TokenBucket: hugeRate}})
	}
	for range 2 {
		if err := c.RemoveShape("e0", Shape{TokenBucket: hugeRate}); err != nil {
			t.Fatal(err)
		}
		wantShapes(t, c, map[string]Shape{})
	}
	if have := tc(t, ns, "qdisc", "show", "dev", "e0"); have != "qdisc noqueue 0: root" {
		t.Errorf("tc prints %q", have)
	}
}

func TestShapeOfWhatIsReceived(t *testing.T) {
	ns, c := connection(t)
	device := RedirectDevice("e0")
	want := map[string]Shape{device: {From: "e0", TokenBucket: tenMegabit}}
	for range 2 {
		skipWithout(t, c.SetShape(device, want[device]))
		wantShapes(t, c, want)
	}
	if have, want := tc(t, ns, "qdisc", "show", "dev", "e0", "ingress"),
		"qdisc ingress ffff: parent ffff:fff1 ----------------"; have != want {
		t.Errorf("tc prints %q, want %q", have, want)
	}
	if have := tc(t, ns, "filter", "show", "dev", "e0", "ingress"); !strings.Contains(have,
		"mirred (Egress Redirect to device "+device+") stolen") ||
		strings.Count(have, "mirred") != 1 || !strings.Contains(have, "match 00000000/00000000 at 0") {
		t.Errorf("tc prints %s", have)
	}
	if have, want := tc(t, ns, "qdisc", "show", "dev", device), "qdisc tbf 6d78: root rate 10Mbit burst "+
		"100000b lat 25ms"; have != want {
		t.Errorf("tc prints %q, want %q", have, want)
	}

	// A limit with any part missing does not count as present, and setting it again repairs it.
	for what, breaks := range map[string][]string{
		"filter":      {"tc", "-n", ns, "filter", "del", "dev", "e0", "ingress"},
		"its queue":   {"tc", "-n", ns, "qdisc", "del", "dev", "e0", "ingress"},
		"bucket":      {"tc", "-n", ns, "qdisc", "del", "dev", device, "root"},
		"device":      {"ip", "-n", ns, "link", "del", device},
		"device down": {"ip", "-n", ns, "link", "set", device, "down"},
	} {
		nettest.Run(t, breaks...)
		if have, err := c.ListShapes(); err != nil || maps.Equal(have, want) {
			t.Errorf("%s: limits are %v, %v", what, have, err)
		}
		if what == "device" && len(mustList(t, c)) != 1 {
			t.Errorf("the remaining filter is not reported")
		}
		if err := c.SetShape(device, want[device]); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		wantShapes(t, c, want)
	}
	// the second time the device is missing, the third time everything
	for _, breaks := range []string{"", device, ""} {
		if breaks != "" {
			if err := c.SetShape(device, want[device]); err != nil {
				t.Fatal(err)
			}
			nettest.Run(t, "ip", "-n", ns, "link", "del", breaks)
		}
		if err := c.RemoveShape(device, want[device]); err != nil {
			t.Fatal(err)
		}
		wantShapes(t, c, map[string]Shape{})
		if have := tc(t, ns, "qdisc", "show", "dev", "e0"); have != "qdisc noqueue 0: root" {
			t.Errorf("tc prints %q", have)
		}
	}
}

func mustList(t *testing.T, c *Conn) map[string]Shape {
	t.Helper()
	list, err := c.ListShapes()
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func TestShapesOfOthersStay(t *testing.T) {
	ns, c := connection(t)
	nettest.Run(t, "tc", "-n", ns, "qdisc", "add", "dev", "e0", "root", "handle", "1:", "tbf", "rate", "1mbit",
		"burst", "10k",
		"latency", "10ms")
	nettest.Run(t, "tc", "-n", ns, "qdisc", "add", "dev", "e0", "clsact")
	nettest.Run(t, "ip", "-n", ns, "link", "add", "bwpother", "type", "ifb")
	nettest.Run(t, "tc", "-n", ns, "filter", "add", "dev", "e0", "ingress", "prio", "7", "protocol", "ip", "u32",
		"match",
		"u32", "0", "0",
		"action", "mirred", "egress", "redirect", "dev", "bwpother")
	before := tc(t, ns, "qdisc", "show", "dev", "e0") + tc(t, ns, "filter", "show", "dev", "e0", "ingress")
	wantShapes(t, c, map[string]Shape{})
	device := RedirectDevice("e0")
	skipWithout(t, c.SetShape(device, Shape{From: "e0", TokenBucket: tenMegabit}))
	wantShapes(t, c, map[string]Shape{device: {From: "e0", TokenBucket: tenMegabit}})
	for _, d := range []string{device, "e0"} {
		if err := c.RemoveShape(d, Shape{From: map[string]string{device: "e0"}[d]}); err != nil {
			t.Fatal(err)
		}
	}
	if after := tc(t, ns, "qdisc", "show", "dev", "e0") + tc(t, ns, "filter", "show", "dev", "e0",
		"ingress"); after != before {
		t.Errorf("others' queues and filters are\n%s\nand were\n%s", after, before)
	}
}

// The queue of another program stays also while it filters only what the interface sends.
func TestQueueWithoutIngressFiltersOfOthersStays(t *testing.T) {
	ns, c := connection(t)
	nettest.Run(t, "tc", "-n", ns, "qdisc", "add", "dev", "e0", "clsact")
	nettest.Run(t, "tc", "-n", ns, "filter", "add", "dev", "e0", "egress", "prio", "7", "protocol", "ip", "u32",
		"match", "u32", "0", "0", "flowid", "1:1")
	show := func() string {
		return tc(t, ns, "qdisc", "show", "dev", "e0") + tc(t, ns, "filter", "show", "dev", "e0", "egress")
	}
	before := show()
	device := RedirectDevice("e0")
	skipWithout(t, c.SetShape(device, Shape{From: "e0", TokenBucket: tenMegabit}))
	if err := c.RemoveShape(device, Shape{From: "e0"}); err != nil {
		t.Fatal(err)
	}
	if after := show(); after != before {
		t.Errorf("others' queues and filters are\n%s\nand were\n%s", after, before)
	}
}

func TestShapeNeedsItsInterface(t *testing.T) {
	_, c := connection(t)
	for device, s := range map[string]Shape{"nosuch": {TokenBucket: tenMegabit}, RedirectDevice("nosuch"): {
		From: "nosuch", TokenBucket: tenMegabit}} {
		if err := c.SetShape(device, s); !errors.Is(err, unix.ENODEV) || !strings.Contains(err.Error(), "nosuch") {
			t.Errorf("error is %v", err)
		}
		if err := c.RemoveShape(device, s); err != nil {
			t.Errorf("what is not there cannot be removed: %v", err)
		}
	}
}

func TestRedirectDeviceIsCalicos(t *testing.T) {
	if have := RedirectDevice("cali4e199eba087"); len(have) != 15 || !strings.HasPrefix(have, "bwcali") {
		t.Errorf("%s", have)
	}
	want := "bwcali" + strings.TrimSpace(
		strings.Fields(nettest.Run(t, "sh", "-c", "printf cali4e199eba087 | sha512sum"))[0])[:9]
	if have := RedirectDevice("cali4e199eba087"); have != want {
		t.Errorf("%s, want %s", have, want)
	}
}

// connection makes a network namespace and connects to it.
func connection(t *testing.T) (name string, c *Conn) {
	t.Helper()
	name = nettest.Namespace(t)
	k, err := kernel.Open(nettest.Path(name))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = k.Close() })
	return name, New(k)
}
