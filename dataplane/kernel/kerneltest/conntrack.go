package kerneltest

import "net/netip"

// ForgetConnections implements Connections; there are none, but it is logged.
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
