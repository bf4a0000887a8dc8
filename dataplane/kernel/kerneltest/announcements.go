package kerneltest

import "net/netip"

// Hear implements announce.Announcements; see Announce.
func (f *Kernel) Hear(device string, _ []netip.Addr, heard func()) (stop func(), err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.called("Hear"); err != nil {
		return nil, err
	}
	f.hearing[device] = heard
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.hearing, device)
	}, nil
}

// Forget implements announce.Announcements.
func (f *Kernel) Forget() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.called("Forget")
}

// Announce makes a machine behind a device announce itself. It reports whether anybody hears that.
func (f *Kernel) Announce(device string) bool {
	f.mu.Lock()
	heard := f.hearing[device]
	delete(f.hearing, device)
	f.mu.Unlock()
	if heard != nil {
		heard()
	}
	return heard != nil
}
