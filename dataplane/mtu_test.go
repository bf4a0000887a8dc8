package dataplane

import (
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/manxnet/manx/dataplane/route"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/integration/namespace"
)

// mtuHost is node-1 of a VXLAN cluster with its file of the MTU.
type mtuHost struct {
	*vxlanHost
	file string
}

func newMTUHost(t *testing.T) *mtuHost {
	h := &mtuHost{newVXLANHost(t), filepath.Join(t.TempDir(), "mtu")}
	h.agent = New(Config{Kernel: KernelOf(h.open()), NodeName: "node-1", Logger: zap.NewNop(), MTUFile: h.file})
	return h
}

// felix is the cluster with settings.
func (h *mtuHost) felix(set func(*model.FelixConfigurationSpec)) model.Set {
	s := vxlanCluster(4096)
	set(&s[model.ResourceKey(model.KindFelixConfiguration, "default")].Value.(*model.FelixConfiguration).Spec)
	return s
}

func (h *mtuHost) wait(what, device, file string) {
	h.t.Helper()
	var have, mtu string
	for deadline := time.Now().Add(15 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		have = h.ip("-o link show type vxlan")
		data, _ := os.ReadFile(h.file)
		if mtu = string(data); strings.Contains(have, " mtu "+device+" ") && mtu == file {
			return
		}
		if time.Now().After(deadline) {
			h.t.Fatalf("%s: the file has %q, want %s; the device, want %s: %s", what, mtu, file, device, have)
		}
	}
}

func (h *mtuHost) notices() (list []string) {
	for _, n := range h.agent.Status().Notices {
		list = append(list, n.Subject+": "+n.Text)
	}
	return list
}

// The device and the file follow the links and the routes to the other nodes while the agent runs, and settings with
// which nothing would work are not used.
func TestMTUFollowsTheUnderlay(t *testing.T) {
	h := newMTUHost(t)
	h.ip("link add eth9 type veth peer name eth9p")
	h.ip("link set eth9 mtu 1300 up")
	start(t, h.agent)
	h.agent.set(vxlanCluster(4096))
	h.agent.synced(true, true)
	h.wait("another interface has nothing to say", "1450", "1450")
	h.ip("link set eth0 mtu 1400")
	h.wait("a smaller uplink", "1350", "1350")
	h.ip("link set eth0 mtu 9000")
	h.wait("a larger one", "8950", "8950")
	h.ip("route add 10.1.0.6/32 dev eth0 mtu 1420")
	h.wait("a route with an MTU", "1370", "1370")
	h.ip("route del 10.1.0.6/32")
	h.wait("without it", "8950", "8950")
	h.agent.set(h.felix(func(f *model.FelixConfigurationSpec) { f.MTUIfacePattern = "^eth9" }))
	h.wait("a pattern of the user", "1250", "1250")
	h.agent.set(h.felix(func(f *model.FelixConfigurationSpec) { f.VXLANMTU = new(100) }))
	h.wait("a setting that is too small", "8950", "8950")
	h.agent.set(h.felix(func(f *model.FelixConfigurationSpec) { f.VXLANMTU = new(9000) }))
	h.wait("a setting that does not fit", "9000", "9000")
	const want = "device vxlan.calico: its MTU is 9000, so its packets have up to 9050 bytes with their headers, and " +
		"the links and routes to other nodes take 9000: larger packets are fragmented, and lost where fragments are " +
		"dropped. Set vxlanMTU to 8950 at most, or to 0"
	if list := h.notices(); !slices.Contains(list, want) {
		t.Errorf("notices: %q", list)
	}
	h.agent.set(h.felix(func(f *model.FelixConfigurationSpec) {
		f.VXLANMTU, f.MTUIfacePattern = new(1300), "^eth9"
	}))
	h.wait("and one that does not fit the interfaces of a pattern", "1300", "1300")
	const ofPattern = "device vxlan.calico: its MTU is 1300, so its packets have up to 1350 bytes with their " +
		"headers, and the interfaces that match mtuIfacePattern take 1300: larger packets are fragmented, and lost " +
		"where fragments are dropped. Set vxlanMTU to 1250 at most, or to 0"
	if list := h.notices(); !slices.Contains(list, ofPattern) {
		t.Errorf("notices: %q", list)
	}
	h.agent.set(vxlanCluster(4096))
	h.wait("without settings", "8950", "8950")
	if list := h.notices(); len(list) > 0 {
		t.Errorf("notices: %q", list)
	}
}

// A new run leaves the MTUs of the one before alone until it has read the routes: none of them flaps.
func TestMTUStaysAtAStart(t *testing.T) {
	h := newMTUHost(t)
	h.ip("link add eth9 type veth peer name eth9p")
	h.ip("link set eth9 mtu 1300 up") // the smallest one by its name
	h.ip("link add vxlan.calico mtu 1450 type vxlan id 4096 dstport 4789 local 10.1.0.5 nolearning")
	if err := os.WriteFile(h.file, []byte("1450"), 0o644); err != nil {
		t.Fatal(err)
	}
	before, err := os.Stat(h.file)
	if err != nil {
		t.Fatal(err)
	}
	start(t, h.agent)
	h.agent.set(vxlanCluster(4096))
	h.agent.synced(true, true)
	h.wait("adopted", "1450", "1450")
	settle(t, h.agent)
	after, err := os.Stat(h.file)
	if err != nil || !os.SameFile(before, after) {
		t.Errorf("the file was written: %v", err)
	}
}

// When the MTU shrinks, the interface of a pod that runs stays as it is, at both ends: the pod hears the new size from
// its node by ICMP, and sends packets that fit.
func TestAPodFollowsASmallerMTU(t *testing.T) {
	h := newMTUHost(t)
	pod := namespace.New(t, "manxagent")
	inPod := func(args string) string { return run(t, append([]string{"ip", "-n", pod}, strings.Fields(args)...)...) }
	h.ip("link add cali1 mtu 1450 type veth peer name eth0 mtu 1450 netns " + pod)
	h.ip("link set cali1 address ee:ee:ee:ee:ee:ee up")
	inPod("link set eth0 up")
	inPod("addr add 10.245.1.9/32 dev eth0")
	inPod("route add 169.254.1.1 dev eth0 scope link")
	inPod("route add default via 169.254.1.1")
	inPod("neigh add 169.254.1.1 lladdr ee:ee:ee:ee:ee:ee dev eth0")
	start(t, h.agent)
	set := vxlanCluster(4096)
	w := endpointObject("w", "node-1", "cali1", "10.245.1.9/32")
	set[w.Key] = w
	h.agent.set(set)
	h.agent.Place([]route.Place{{Prefix: netip.MustParsePrefix("10.245.2.0/26"), Node: "node-2"}}, true)
	h.agent.synced(true, true)
	h.wait("at first", "1450", "1450")
	large := func() string { // IP packets of 1450 bytes that nobody may fragment
		out, _ := exec.Command("ip", "netns", "exec", pod, "ping", "-M", "do", "-c", "1", "-W", "1", "-s", "1422",
			"10.245.2.9").CombinedOutput()
		return string(out)
	}
	for deadline := time.Now().Add(15 * time.Second); !strings.Contains(h.ip("route"), "10.245.1.9 dev cali1") ||
		!strings.Contains(h.ip("route"), "10.245.2.0/26 via 10.245.2.1"); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal(h.ip("route"))
		}
	}
	if out := large(); strings.Contains(out, "mtu") {
		t.Errorf("packets that fit: %s", out)
	}
	h.ip("link set eth0 mtu 1400")
	h.wait("a smaller uplink", "1350", "1350")
	if out := large(); !strings.Contains(out, "mtu = 1350") {
		t.Errorf("packets that are too large: %s", out)
	}
	if out := inPod("route get 10.245.2.9"); !strings.Contains(out, " mtu 1350") {
		t.Errorf("the pod's route is %s", out)
	}
	for _, link := range []string{h.ip("link show cali1"), inPod("link show eth0")} {
		if !strings.Contains(link, " mtu 1450 ") {
			t.Errorf("the pod's interface is %s", link)
		}
	}
}
