package overuse

import (
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/manxnet/manx/dataplane/kernel/conntrack"
	"github.com/manxnet/manx/dataplane/policy"
	"github.com/manxnet/manx/datastore/model"
)

func TestDecide(t *testing.T) {
	of := func(a, b int) map[policy.Limit]int {
		return map[policy.Limit]int{{Interface: "a"}: a, {Interface: "b", To: true}: b}
	}
	for _, c := range []struct {
		name       string
		usage      usage
		configured int
		limited    string // before
		watched    bool
		want       string // the limited ones, each with the connections to delete
	}{
		{"an empty table", usage{0, 1000, of(0, 0)}, 0, "", false, ""},
		{"below half", usage{499, 1000, of(400, 9)}, 0, "", false, "a:0"},
		{"at half, and below the share", usage{500, 1000, of(250, 250)}, 0, "", true, ""},
		{"above the share", usage{500, 1000, of(251, 249)}, 0, "", true, "a:0"},
		{"the host has all of it", usage{999, 1000, of(0, 1)}, 0, "", true, ""},
		{"nearly full", usage{800, 1000, of(700, 250)}, 0, "", true, "a:450"},
		{"nearly full of two", usage{1000, 1000, of(500, 400)}, 0, "", true, "a:250 b:150"},
		{"deleted down to the share", usage{400, 1000, of(250, 0)}, 0, "a", false, "a:0"},
		{"above three quarters of the share", usage{187, 1000, of(187, 0)}, 0, "a", false, "a:0"},
		{"below them", usage{186, 1000, of(186, 0)}, 0, "a", false, ""},
		{"a limited workload that is gone", usage{500, 1000, of(10, 10)}, 0, "c", true, ""},
		{"a share of its own", usage{40, 1000, of(20, 21)}, 20, "", true, "b:0"},
		{"a share of its own, nothing to read", usage{39, 1000, of(0, 0)}, 20, "", false, ""},
		{"a share above half of the table", usage{500, 1000, of(500, 0)}, 900, "", true, ""},
		{"a table without bound", usage{500, 0, of(500, 0)}, 900, "", false, ""},
	} {
		limited := map[policy.Limit]bool{}
		for _, iface := range strings.Fields(c.limited) {
			limited[policy.Limit{Interface: iface, To: iface == "b"}] = true
		}
		now, excess := decide(c.usage, c.configured, limited)
		var got []string
		for _, iface := range []string{"a", "b", "c"} {
			if l := (policy.Limit{Interface: iface, To: iface == "b"}); now[l] {
				got = append(got, fmt.Sprintf("%s:%d", iface, excess[l]))
			}
		}
		if text := strings.Join(got, " "); text != c.want || c.usage.watched(c.configured) != c.watched {
			t.Errorf("%s: limited %q, read %t; want %q, %t", c.name, text, c.usage.watched(c.configured), c.want,
				c.watched)
		}
	}
}

// host is a table of connections, and the packet filter, in memory.
type host struct {
	now       time.Time
	reading   time.Duration // that a reading takes
	absent    bool
	count     []int // of connections that each workload began
	answered  int   // by the second one
	others    int
	reads     int
	unknown   bool // the workloads are not known yet
	limited   []string
	fragments map[string]uint64
}

func (h *host) Sysctl(name string) (string, error) {
	switch {
	case h.absent:
		return "", fs.ErrNotExist
	case name == sysctlMax:
		return "1000", nil
	}
	n := h.others + h.answered
	for _, x := range h.count {
		n += x
	}
	return fmt.Sprint(n), nil
}

func (h *host) CountConnections(_ conntrack.Owners, owners int) (list []conntrack.Usage, err error) {
	h.reads++
	h.now = h.now.Add(h.reading)
	for _, n := range h.count[:owners] {
		list = append(list, conntrack.Usage{Begun: n})
	}
	list[1].Answered = h.answered
	return list, nil
}

func (h *host) DeleteConnections(_ conntrack.Owners, excess []conntrack.Usage) (n int, err error) {
	for i, x := range excess {
		h.count[i] -= x.Begun
		n += x.Begun + x.Answered
	}
	h.answered -= excess[1].Answered
	return n, nil
}

func (h *host) Workloads() (list []policy.LocalWorkload) {
	for i, name := range []string{"a", "b"}[:map[bool]int{false: 2}[h.unknown]] {
		list = append(list, policy.LocalWorkload{Key: model.Key{Namespace: "ns", Name: name}, Interface: "cali" + name,
			Addresses: []netip.Addr{netip.MustParseAddr(fmt.Sprintf("10.0.0.%d", i))}})
	}
	return list
}

func (h *host) SetLimited(limits []policy.Limit) {
	h.limited = nil
	for _, l := range limits {
		h.limited = append(h.limited, way(l)+" "+l.Interface)
	}
}

func (h *host) DroppedFragments() (map[string]uint64, error) { return maps.Clone(h.fragments), nil }

func newWatch() (*host, *Watch) {
	h := &host{now: time.Unix(1000, 0), reading: 100 * time.Millisecond, count: []int{0, 0}}
	w := New(Config{Connections: h, Sysctl: h.Sysctl, Policy: h, MaxFragments: 2000, Log: zap.NewNop()})
	w.now = func() time.Time { return h.now }
	return h, w
}

func notices(w *Watch) string {
	var texts []string
	for _, n := range w.Notices() {
		texts = append(texts, n.Subject+": "+n.Text)
	}
	return strings.Join(texts, "\n")
}

func metrics(w *Watch) string {
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(w)
	families, err := r.Gather()
	return fmt.Sprint(families, err)
}

// The table is read when it is half full, at once and then for a tenth of the time at most. A workload with more than
// a quarter of it gets no new connections, and loses what it has above that while the table is nearly full.
func TestWatchLimitsConnections(t *testing.T) {
	h, w := newWatch()
	step := func(name string, second int, limited string, reads int, notice ...string) {
		t.Helper()
		h.now = time.Unix(1000+int64(second), 0)
		w.connections()
		if got := strings.Join(h.limited, " "); got != limited || h.reads != reads {
			t.Errorf("%s: %q limited after %d readings, want %q after %d", name, got, h.reads, limited, reads)
		}
		text := notices(w)
		for _, part := range notice {
			if !strings.Contains(text, part) {
				t.Errorf("%s: no %q in the notices:\n%s", name, part, text)
			}
		}
		if len(notice) == 0 && text != "" {
			t.Errorf("%s: notices:\n%s", name, text)
		}
	}
	h.absent = true
	step("connections are not tracked", 0, "", 0)
	h.absent = false
	h.count = []int{400, 20}
	step("below half", 1, "", 0)
	h.count[0] = 700
	h.unknown = true
	step("half full before the workloads are known", 1, "", 0)
	h.unknown = false
	step("half full", 2, "from calia", 1,
		"ns/a: it began 700 connections that the kernel still has, and a workload may have 250")
	if text := metrics(w); !strings.Contains(text, `ns/a`) || strings.Contains(text, `ns/b`) {
		t.Errorf("metrics: %s", text)
	}
	h.count[0] = 900
	step("too early for another reading", 3, "from calia", 1, "ns/a: it began 700", "connections: the kernel's table")
	step("a tenth of the time", 4, "from calia", 2, "ns/a: it began 900",
		"920 of at most 1000 entries (ns/a has most, 900)")
	if h.count[0] != 250 || h.count[1] != 20 {
		t.Errorf("%v connections are left", h.count)
	}
	step("its connections were deleted", 6, "from calia", 3, "ns/a: it began 250")
	h.count[0] = 180
	step("most have ended", 8, "", 4)
	step("nothing to do", 10, "", 4)
	h.others = 800
	step("the host fills it", 12, "", 5, "connections: the kernel's table of connections has 1000 of at most 1000")
	if h.count[0] != 180 {
		t.Error("a workload that has no more than its share loses connections")
	}
	h.others, h.answered = 100, 300
	step("others connect to a workload", 14, "to calib", 6,
		"ns/b: it has 300 connections of others, and a workload may have 250: no new ones reach it")
}

func TestWatchReportsFragments(t *testing.T) {
	h, w := newWatch()
	for i, c := range []struct {
		name    string
		dropped map[string]uint64
		want    string
	}{
		{"none", map[string]uint64{"calia": 0, "calib": 0}, ""},
		{"some", map[string]uint64{"calia": 0, "calib": 7}, "ns/b: it sends more than 2000 IP fragments a second"},
		{"more", map[string]uint64{"calia": 0, "calib": 9}, "and 9 were dropped"},
		{"a new rule", map[string]uint64{"calib": 3}, "and 12 were dropped"},
		{"still recent", map[string]uint64{"calib": 3}, "and 12 were dropped"},
		{"over", map[string]uint64{"calib": 3}, ""},
		{"again", map[string]uint64{"calib": 4}, "and 13 were dropped"},
		{"gone", nil, ""},
	} {
		h.now, h.fragments = time.Unix(1000+int64(i)*31, 0), c.dropped
		w.readFragments(h.now)
		if text := notices(w); !strings.Contains(text, c.want) || c.want == "" && text != "" {
			t.Errorf("%s: notices %q, want %q", c.name, text, c.want)
		}
		if text := metrics(w); c.dropped["calib"] > 0 &&
			(!strings.Contains(text, "ns/b") || strings.Contains(text, "ns/a")) {
			t.Errorf("%s: metrics %s", c.name, text)
		}
	}
}
