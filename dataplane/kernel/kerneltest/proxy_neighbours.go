package kerneltest

import (
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/dataplane/kernel"
)

// PutProxyNeighbour sets an entry as another program would.
func (f *Kernel) PutProxyNeighbour(p kernel.ProxyNeighbour) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.proxies[neighbourKey{p.Link, p.Address}] = p
}

// ListProxyNeighbours implements ProxyNeighbours.
func (f *Kernel) ListProxyNeighbours() ([]kernel.ProxyNeighbour, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.called("ListProxyNeighbours"); err != nil {
		return nil, err
	}
	var all []kernel.ProxyNeighbour
	for _, p := range f.proxies {
		all = append(all, p)
	}
	return all, nil
}

// SetProxyNeighbour implements ProxyNeighbours.
func (f *Kernel) SetProxyNeighbour(link int, a netip.Addr) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.called("SetProxyNeighbour"); err != nil {
		return fmt.Errorf("answer for %s: %w", a, err)
	}
	if _, ok := f.links[link]; !ok {
		return unix.ENODEV
	}
	k := neighbourKey{link, a}
	if _, there := f.proxies[k]; !there {
		f.proxies[k] = kernel.ProxyNeighbour{Link: link, Address: a, Own: true}
		f.logf("proxy %s dev #%d", a, link)
	}
	return nil
}

// RemoveProxyNeighbour implements ProxyNeighbours.
func (f *Kernel) RemoveProxyNeighbour(link int, a netip.Addr) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.called("RemoveProxyNeighbour"); err != nil {
		return fmt.Errorf("no longer answer for %s: %w", a, err)
	}
	if k := (neighbourKey{link, a}); f.proxies[k].Own {
		delete(f.proxies, k)
		f.logf("no proxy %s dev #%d", a, link)
	}
	return nil
}
