package kerneltest

import (
	"maps"
	"net/netip"
)

// ForgetConnections implements Connections; it is only logged.
func (f *Kernel) ForgetConnections(addresses []netip.Addr) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.called("ForgetConnections"); err != nil {
		return 0, err
	}
	for _, a := range addresses {
		f.logf("forget connections of %s", a)
	}
	return 0, nil
}

// PutConnections gives the kernel connections with addresses.
func (f *Kernel) PutConnections(addresses ...netip.Addr) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, a := range addresses {
		f.connected[a] = true
	}
}

// ConnectedAddresses implements conntrack.Table.
func (f *Kernel) ConnectedAddresses() (map[netip.Addr]bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.called("ConnectedAddresses"); err != nil {
		return nil, err
	}
	return maps.Clone(f.connected), nil
}
