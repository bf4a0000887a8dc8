package wireguard

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/manxnet/manx/dataplane/kernel/device"
	"github.com/manxnet/manx/dataplane/kernel/netlink"
)

// Device is a WireGuard device as it is.
type Device struct {
	PublicKey Key // zero: it has no private key
	Port      uint16
	// Mark is that of the packets that it sends to other hosts (SO_MARK), 0 for none.
	Mark  uint32
	Peers []Peer
	// Threads are those of NAPI, which share its work among processors.
	Threads Threads
}

// Threads says whether a device has threads of its own for its packets (threaded NAPI).
type Threads uint8

// NoThreads is a kernel that cannot do it, or an unreadable /sys.
const (
	NoThreads Threads = iota
	ThreadsOff
	ThreadsOn
)

// Peer is another host of a device.
type Peer struct {
	Key      Key
	Endpoint netip.AddrPort // invalid: unknown
	// Keepalive is the time between packets that are sent without need, 0 for none.
	Keepalive  time.Duration
	AllowedIPs []netip.Prefix
	// Handshake is the time of the last one, zero if there was none.
	Handshake      time.Time
	Received, Sent uint64 // bytes
}

// Settings are those of a device beside its peers.
type Settings struct {
	Port uint16
	Mark uint32
	// NewKey makes a private key. Without it the device keeps the one that it has.
	NewKey bool
}

// Change is one of a device's peers. Other peers, and those of its AllowedIPs that are not named, stay.
type Change struct {
	Key Key
	// Remove removes the peer with its AllowedIPs; the fields below do not matter then.
	Remove    bool
	Endpoint  netip.AddrPort // invalid: it stays as it is
	Keepalive *time.Duration // nil: it stays as it is
	// Add are further AllowedIPs. The kernel takes each of them away from the peer that had it.
	Add []netip.Prefix
}

// Devices reads and changes devices, which are named as interfaces are.
type Devices interface {
	// WireGuard returns a device.
	WireGuard(name string) (Device, error)
	SetWireGuard(name string, s Settings) error
	// SetThreads switches threads on or off. The kernel refuses that with EIO before the device has a peer.
	SetThreads(name string, on bool) error
	// ChangePeers makes changes in their order. What does not exist is removed without an error.
	ChangePeers(name string, changes []Change) error
	// DropAllowedIPs takes AllowedIPs away from whichever peers have them. No packet to another one is lost.
	DropAllowedIPs(name string, list []netip.Prefix) error
	// MarkARP gives a mark to the ARP packets that come in, 0 for none. Strict rp_filter looks up the way to their
	// sender with it, if src_valid_mark is set, and without a way back the kernel does not answer them.
	MarkARP(mark uint32) error
	// ARPMark returns that mark, 0 if they get none.
	ARPMark() (uint32, error)
}

// Conn has the devices of a network namespace. It is safe for concurrent use.
type Conn struct{ namespace *netlink.Namespace }

// New returns those of a namespace, which must stay open.
func New(n *netlink.Namespace) *Conn { return &Conn{n} }

var _ Devices = (*Conn)(nil)

// with runs f with a client of its own. The library finds the kernel's part only once the module is loaded, and the
// client belongs to the namespace of the thread that makes it, so none is kept.
func (c *Conn) with(name string, f func(*wgctrl.Client) error) error {
	err := c.namespace.Do(func() error {
		client, err := wgctrl.New()
		if err != nil {
			return err
		}
		return errors.Join(f(client), client.Close())
	})
	if err != nil {
		return fmt.Errorf("WireGuard device %s: %w", name, err)
	}
	return nil
}

// WireGuard implements Devices.
func (c *Conn) WireGuard(name string) (d Device, err error) {
	err = c.with(name, func(client *wgctrl.Client) error {
		have, err := client.Device(name)
		if err == nil {
			d = read(have)
			clear(have.PrivateKey[:])
			d.Threads = threadsOf(name)
		}
		return err
	})
	return d, err
}

// threadsFile is in the sysfs of the network namespace in which it was mounted.
func threadsFile(name string) string { return "/sys/class/net/" + name + "/threaded" }

func threadsOf(name string) Threads {
	text, err := os.ReadFile(threadsFile(name))
	switch value := strings.TrimSpace(string(text)); {
	case err != nil:
		return NoThreads
	case value == "0":
		return ThreadsOff
	}
	return ThreadsOn
}

// SetThreads implements Devices.
func (c *Conn) SetThreads(name string, on bool) error {
	text := "0"
	if on {
		text = "1"
	}
	if err := os.WriteFile(threadsFile(name), []byte(text), 0o644); err != nil {
		return fmt.Errorf("switch threads of WireGuard device %s: %w", name, err)
	}
	return nil
}

func read(have *wgtypes.Device) Device {
	d := Device{Port: uint16(have.ListenPort), Mark: uint32(have.FirewallMark)}
	if have.PrivateKey != (wgtypes.Key{}) {
		d.PublicKey = Key(have.PublicKey)
	}
	for _, p := range have.Peers {
		peer := Peer{Key: Key(p.PublicKey), Keepalive: p.PersistentKeepaliveInterval,
			Received: uint64(p.ReceiveBytes), Sent: uint64(p.TransmitBytes)}
		if !p.LastHandshakeTime.IsZero() && p.LastHandshakeTime.Unix() > 0 {
			peer.Handshake = p.LastHandshakeTime
		}
		if p.Endpoint != nil {
			a := p.Endpoint.AddrPort()
			peer.Endpoint = netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
		}
		for i := range p.AllowedIPs {
			peer.AllowedIPs = append(peer.AllowedIPs, device.Prefix(&p.AllowedIPs[i]))
		}
		d.Peers = append(d.Peers, peer)
	}
	return d
}

// SetWireGuard implements Devices.
func (c *Conn) SetWireGuard(name string, s Settings) error {
	port, mark := int(s.Port), int(s.Mark)
	config := wgtypes.Config{ListenPort: &port, FirewallMark: &mark}
	if s.NewKey {
		key, err := wgtypes.GeneratePrivateKey()
		if err != nil {
			return fmt.Errorf("make a private key for WireGuard device %s: %w", name, err)
		}
		defer clear(key[:])
		config.PrivateKey = &key
	}
	return c.with(name, func(client *wgctrl.Client) error { return client.ConfigureDevice(name, config) })
}

// ChangePeers implements Devices.
func (c *Conn) ChangePeers(name string, changes []Change) error {
	var config wgtypes.Config
	for _, x := range changes {
		p := wgtypes.PeerConfig{PublicKey: wgtypes.Key(x.Key), Remove: x.Remove}
		if !x.Remove {
			p.PersistentKeepaliveInterval, p.AllowedIPs = x.Keepalive, allowed(x.Add)
			if x.Endpoint.IsValid() {
				p.Endpoint = net.UDPAddrFromAddrPort(x.Endpoint)
			}
		}
		config.Peers = append(config.Peers, p)
	}
	return c.with(name, func(client *wgctrl.Client) error { return client.ConfigureDevice(name, config) })
}

// dropAtOnce bounds the AllowedIPs of one request: the library divides longer ones.
const dropAtOnce = 200

// DropAllowedIPs implements Devices. The kernel moves an AllowedIP from one peer to another in one step, and has no
// other way to take one away than to replace all those of its peer, one after the other: a peer that exists for this
// alone takes them along.
func (c *Conn) DropAllowedIPs(name string, list []netip.Prefix) error {
	return c.with(name, func(client *wgctrl.Client) error {
		for part := range slices.Chunk(list, dropAtOnce) {
			key, err := wgtypes.GenerateKey()
			if err != nil {
				return err
			}
			err = client.ConfigureDevice(name, wgtypes.Config{Peers: []wgtypes.PeerConfig{
				{PublicKey: key, AllowedIPs: allowed(part)}, {PublicKey: key, Remove: true}}})
			if err != nil {
				return err
			}
		}
		return nil
	})
}

func allowed(list []netip.Prefix) (form []net.IPNet) {
	for _, p := range list {
		form = append(form, *device.IPNet(p))
	}
	return form
}
