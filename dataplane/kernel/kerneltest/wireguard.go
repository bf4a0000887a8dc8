package kerneltest

import (
	"crypto/sha256"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/kernel/wireguard"
)

// ListRules implements Rules.
func (f *Kernel) ListRules() ([]kernel.Rule, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.called("ListRules"); err != nil {
		return nil, err
	}
	return slices.Clone(f.rules), nil
}

// AddRule implements Rules.
func (f *Kernel) AddRule(r kernel.Rule) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.called("AddRule"); err != nil {
		return err
	}
	f.logf("add rule %s", r)
	if !slices.Contains(f.rules, r) {
		f.rules = append(f.rules, r)
	}
	return nil
}

// DeleteRule implements Rules.
func (f *Kernel) DeleteRule(r kernel.Rule) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.called("DeleteRule"); err != nil {
		return err
	}
	f.logf("delete rule %s", r)
	f.rules = slices.DeleteFunc(f.rules, func(have kernel.Rule) bool { return have == r })
	return nil
}

// tunnel is a WireGuard device.
type tunnel struct {
	key        wireguard.Key
	port       uint16
	mark       uint32
	threads    wireguard.Threads
	peers      map[wireguard.Key]wireguard.Peer // without AllowedIPs
	allowedIPs map[netip.Prefix]wireguard.Key
}

// tunnelOf returns the WireGuard device of an interface. The lock is held.
func (f *Kernel) tunnelOf(name string) (*tunnel, error) {
	for _, l := range f.links {
		if l.Name != name || l.Kind != kernel.KindWireGuard {
			continue
		}
		if f.tunnels[l.Index] == nil {
			f.tunnels[l.Index] = &tunnel{threads: wireguard.ThreadsOff, peers: map[wireguard.Key]wireguard.Peer{},
				allowedIPs: map[netip.Prefix]wireguard.Key{}}
		}
		return f.tunnels[l.Index], nil
	}
	return nil, fmt.Errorf("WireGuard device %s: %w", name, fs.ErrNotExist)
}

// onTunnel runs a counted call.
func (f *Kernel) onTunnel(method, name string, do func(*tunnel) error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.called(method); err != nil {
		return err
	}
	t, err := f.tunnelOf(name)
	if err != nil {
		return err
	}
	return do(t)
}

// WireGuard implements wireguard.Devices.
func (f *Kernel) WireGuard(name string) (d wireguard.Device, err error) {
	err = f.onTunnel("WireGuard", name, func(t *tunnel) error {
		d = wireguard.Device{PublicKey: t.key, Port: t.port, Mark: t.mark, Threads: t.threads}
		for _, k := range slices.SortedFunc(maps.Keys(t.peers), byText) {
			p := t.peers[k]
			for a, holder := range t.allowedIPs {
				if holder == k {
					p.AllowedIPs = append(p.AllowedIPs, a)
				}
			}
			d.Peers = append(d.Peers, p)
		}
		return nil
	})
	return d, err
}

func byText(a, b wireguard.Key) int { return slices.Compare(a[:], b[:]) }

// SetWireGuard implements wireguard.Devices.
func (f *Kernel) SetWireGuard(name string, s wireguard.Settings) error {
	return f.onTunnel("SetWireGuard", name, func(t *tunnel) error {
		t.port, t.mark = s.Port, s.Mark
		if s.NewKey {
			t.key = PublicKey(fmt.Sprint(name, " ", f.calls["SetWireGuard"]))
		}
		f.logf("set %s port %d mark 0x%x new key %t", name, s.Port, s.Mark, s.NewKey)
		return nil
	})
}

// SetThreads implements wireguard.Devices.
func (f *Kernel) SetThreads(name string, on bool) error {
	return f.onTunnel("SetThreads", name, func(t *tunnel) error {
		if len(t.peers) == 0 {
			return unix.EIO // as the kernel does
		}
		if t.threads = wireguard.ThreadsOff; on {
			t.threads = wireguard.ThreadsOn
		}
		f.logf("threads of %s: %t", name, on)
		return nil
	})
}

// ForgetThreads has a device be one of a kernel without threads.
func (f *Kernel) ForgetThreads(name string) error {
	return f.onTunnel("ForgetThreads", name, func(t *tunnel) error {
		t.threads = wireguard.NoThreads
		return nil
	})
}

// PublicKey returns a key that follows from a text.
func PublicKey(text string) wireguard.Key { return sha256.Sum256([]byte(text)) }

// ChangePeers implements wireguard.Devices.
func (f *Kernel) ChangePeers(name string, changes []wireguard.Change) error {
	return f.onTunnel("ChangePeers", name, func(t *tunnel) error {
		for _, c := range changes {
			if c.Key == f.refusedPeer {
				return unix.EINVAL
			}
			if c.Remove {
				f.logf("remove peer %s of %s", c.Key, name)
				delete(t.peers, c.Key)
				maps.DeleteFunc(t.allowedIPs, func(_ netip.Prefix, holder wireguard.Key) bool {
					return holder == c.Key
				})
				continue
			}
			if c.Key == t.key {
				continue // as the kernel does
			}
			p := t.peers[c.Key]
			if p.Key = c.Key; c.Endpoint.IsValid() {
				p.Endpoint = c.Endpoint
			}
			if c.Keepalive != nil {
				p.Keepalive = *c.Keepalive
			}
			t.peers[c.Key] = p
			for _, a := range c.Add {
				t.allowedIPs[a] = c.Key
			}
			f.logf("peer %s of %s at %s keepalive %s adds %v", c.Key, name, p.Endpoint, p.Keepalive, c.Add)
		}
		return nil
	})
}

// DropAllowedIPs implements wireguard.Devices.
func (f *Kernel) DropAllowedIPs(name string, list []netip.Prefix) error {
	return f.onTunnel("DropAllowedIPs", name, func(t *tunnel) error {
		for _, a := range list {
			delete(t.allowedIPs, a)
		}
		f.logf("%s allows %v no more", name, list)
		return nil
	})
}

// MarkARP implements wireguard.Devices.
func (f *Kernel) MarkARP(mark uint32) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.called("MarkARP"); err != nil {
		return err
	}
	f.arpMark = mark
	f.logf("ARP mark 0x%x", mark)
	return nil
}

// ARPMark implements wireguard.Devices.
func (f *Kernel) ARPMark() (uint32, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.arpMark, f.called("ARPMark")
}

// RefusePeer has no device take a peer with a key; zero: all take all.
func (f *Kernel) RefusePeer(k wireguard.Key) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refusedPeer = k
}

// CountPeer adds bytes to the counters of a peer, which the device must have.
func (f *Kernel) CountPeer(name string, peer wireguard.Key, received, sent uint64) error {
	return f.onPeer(name, peer, func(p *wireguard.Peer) { p.Received, p.Sent = p.Received+received, p.Sent+sent })
}

// ShakeHands simulates a handshake with a peer, which the device must have.
func (f *Kernel) ShakeHands(name string, peer wireguard.Key, at time.Time) error {
	return f.onPeer(name, peer, func(p *wireguard.Peer) { p.Handshake = at })
}

func (f *Kernel) onPeer(name string, peer wireguard.Key, change func(*wireguard.Peer)) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	t, err := f.tunnelOf(name)
	if err != nil {
		return err
	}
	p, ok := t.peers[peer]
	if !ok {
		return unix.ENOENT
	}
	change(&p)
	t.peers[peer] = p
	return nil
}
