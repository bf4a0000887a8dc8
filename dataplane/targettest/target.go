package targettest

import (
	"crypto/sha1"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/manxnet/manx/dataplane/driver"
	"github.com/manxnet/manx/dataplane/hoststate"
	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/reconcile"
	"github.com/manxnet/manx/datastore/model"
)

// Key is the hardware address of a node on a device.
type Key struct{ Device, MAC string }

// String names an entry for people.
func (k Key) String() string { return fmt.Sprintf("fdb %s %s", k.Device, k.MAC) }

// Link makes an entry one of the device: it is read again when the device comes, goes or changes.
func (k Key) Link() string { return k.Device }

// Kernel has the kernel calls of a Target.
type Kernel interface {
	ListLinks() ([]kernel.Link, error)
	Entries() (map[Key]netip.Addr, error)
	SetEntry(Key, netip.Addr) error
	RemoveEntry(Key) error
}

// Target keeps the entries of a device: for each other node, the address to which its packets are sent. Not safe for
// concurrent use.
type Target struct {
	*driver.Driver[Key, netip.Addr]
	kernel Kernel
	device string
}

// New makes a Target for a device; now is the clock.
func New(k Kernel, device string, now func() time.Time) *Target {
	t := &Target{kernel: k, device: device}
	t.Driver = driver.New(t, driver.Config[Key, netip.Addr]{Name: "fdb", Part: "fdb", ListLinks: k.ListLinks, Now: now,
		Follows: func(h *hoststate.Host) bool { return h.Concerned || h.NodesChanged }})
	return t
}

// Desired implements driver.Objects.
func (t *Target) Desired(h *hoststate.Host, links map[string]kernel.Link) map[Key]netip.Addr {
	want := map[Key]netip.Addr{}
	if _, exists := links[t.device]; !exists {
		return want
	}
	for k, n := range model.All[model.Node](h.Reader, model.KindNode) {
		if a := n.Spec.BGP.Address(model.IPv4).Addr(); a.IsValid() && k.Name != h.Node {
			want[Key{t.device, macOf(k.Name)}] = a
		}
	}
	return want
}

// macOf returns the hardware address of a node: a local one made of its name.
func macOf(node string) string {
	sum := sha1.Sum([]byte(node))
	return net.HardwareAddr(append([]byte{0x66}, sum[:5]...)).String()
}

// List implements driver.Objects.
func (t *Target) List() (map[Key]netip.Addr, error) { return t.kernel.Entries() }

// Apply implements driver.Objects.
func (t *Target) Apply(steps []reconcile.Step[Key, netip.Addr]) []error {
	errs := make([]error, len(steps))
	for i, s := range steps {
		if s.Action == reconcile.Remove {
			errs[i] = t.kernel.RemoveEntry(s.Key)
		} else {
			errs[i] = t.kernel.SetEntry(s.Key, s.New)
		}
	}
	return errs
}
