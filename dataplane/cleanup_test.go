package dataplane

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/kernel/kerneltest"
)

func TestCleanupRemovesWhatIsOursAndNothingElse(t *testing.T) {
	h := newHost(t)
	h.ip("route add 10.244.1.0/24 via 10.1.0.9 proto 12 metric 1024")
	h.ip("route add blackhole 10.244.2.0/26 proto 12")
	h.ip("route add 10.244.3.0/26 via 10.1.0.9 proto 80 metric 1024")
	h.ip("route add fd02::/64 via fd01::9 proto 12 metric 1024")
	h.ip("route add 192.0.2.0/24 via 10.1.0.9 proto static")
	h.ip("route add 10.244.9.0/24 via 10.1.0.9 proto 12 table 7")
	h.ip("neigh replace 10.1.0.9 dev eth0 extern_learn nud none proto 80")
	h.ip("neigh replace 10.1.0.8 dev eth0 lladdr 0a:00:00:00:00:08 nud permanent")
	h.ip("neigh add proxy 10.1.0.7 dev eth0 proto 80")
	h.ip("neigh add proxy 10.1.0.6 dev eth0")
	k, err := kernel.Open("/run/netns/" + h.name)
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close() //nolint:errcheck // the namespace goes with the test
	n, err := Cleanup(KernelOf(k))
	if n != 4 || err != nil {
		t.Errorf("removed %d, %v; want 4", n, err)
	}
	if n := h.ip("neigh show nud all"); strings.Contains(n, "10.1.0.9") || !strings.Contains(n, "10.1.0.8") {
		t.Errorf("the neighbours are %s", n)
	}
	if n := h.ip("neigh show proxy"); strings.Contains(n, "10.1.0.7") || !strings.Contains(n, "10.1.0.6") {
		t.Errorf("the host answers for %s", n)
	}
	rest := h.ip("route show table all") + h.ip("-6 route show table all")
	for _, gone := range []string{"10.244.1.0/24", "10.244.2.0/26", "10.244.3.0/26", "fd02::/64"} {
		if strings.Contains(rest, gone) {
			t.Errorf("%s is still there:\n%s", gone, rest)
		}
	}
	for _, kept := range []string{"default via 10.1.0.1", "192.0.2.0/24", "10.244.9.0/24", "10.1.0.0/24"} {
		if !strings.Contains(rest, kept) {
			t.Errorf("%s is gone:\n%s", kept, rest)
		}
	}
	if n, err := Cleanup(KernelOf(k)); n != 0 || err != nil {
		t.Errorf("the second time: removed %d, %v", n, err)
	}
}

// A VXLAN device of the node goes with all that is on it. Another program's stays.
func TestCleanupDeletesVXLAN(t *testing.T) {
	f := kerneltest.New()
	f.PutLink(kernel.Link{Index: 5, Name: "vxlan.calico", Kind: kernel.KindVXLAN})
	f.PutAddress(kernel.Address{Link: 5, Prefix: netip.MustParsePrefix("10.244.0.1/32")})
	f.PutLink(kernel.Link{Index: 6, Name: "flannel.1", Kind: kernel.KindVXLAN})
	f.PutLink(kernel.Link{Index: 7, Name: "vxlan-v6.calico", Kind: "bridge"})
	f.Fail("DeleteLink", 1, unix.EBUSY)
	if n, err := Cleanup(f); n != 1 || !errors.Is(err, unix.EBUSY) { // the address
		t.Errorf("removed %d, %v; want 1 and the failure", n, err)
	}
	if n, err := Cleanup(f); n != 1 || err != nil {
		t.Errorf("removed %d, %v; want 1", n, err)
	}
	links, _ := f.ListLinks()
	if slices.SortFunc(links, func(a, b kernel.Link) int { return a.Index - b.Index }); len(links) != 3 ||
		links[1].Name != "flannel.1" || links[2].Name != "vxlan-v6.calico" {
		t.Errorf("%+v", links)
	}
}

func TestCleanupGoesOnAfterAFailure(t *testing.T) {
	f := kerneltest.New()
	f.PutLink(kernel.Link{Index: 5, Name: "tunl0"})
	f.PutAddress(kernel.Address{Link: 5, Prefix: netip.MustParsePrefix("10.244.0.1/32")})
	f.PutAddress(kernel.Address{Link: 5, Prefix: netip.MustParsePrefix("10.244.0.2/32")})
	f.Fail("DeleteAddress", 1, unix.EBUSY)
	if n, err := Cleanup(f); n != 1 || !errors.Is(err, unix.EBUSY) {
		t.Errorf("removed %d, %v; want 1 and the failure", n, err)
	}
}
