package kerneltest

import (
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/dataplane/kernel"
)

// neighbourKey is the kernel's identity of a neighbour.
type neighbourKey struct {
	link    int
	address netip.Addr
}

// PutFarEnd sets the other end of an interface.
func (f *Kernel) PutFarEnd(link int, e kernel.FarEnd) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.farEnds[link] = e
}

// PutNeighbour sets an entry as another program or the kernel would.
func (f *Kernel) PutNeighbour(n kernel.Neighbour) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.neighbours[neighbourKey{n.Link, n.Address}] = n
}

// ListNeighbours implements Neighbours.
func (f *Kernel) ListNeighbours() ([]kernel.Neighbour, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.called("ListNeighbours"); err != nil {
		return nil, err
	}
	var all []kernel.Neighbour
	for _, n := range f.neighbours {
		all = append(all, n)
	}
	return all, nil
}

// SetNeighbour implements Neighbours.
func (f *Kernel) SetNeighbour(n kernel.Neighbour) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.called("SetNeighbour"); err != nil {
		return fmt.Errorf("set neighbour %s: %w", n.Address, err)
	}
	if _, ok := f.links[n.Link]; !ok {
		return unix.ENODEV
	}
	k := neighbourKey{n.Link, n.Address}
	if old := f.neighbours[k]; n.Kind != kernel.Permanent {
		if old.Kind == kernel.Permanent && !old.Own {
			return nil
		}
		n.MAC = old.MAC
		how := "resolved"
		if n.Kind == kernel.Unresolved {
			how = "unresolved"
		}
		f.logf("neighbour %s dev #%d %s", n.Address, n.Link, how)
	} else {
		f.logf("neighbour %s dev #%d at %s", n.Address, n.Link, n.MAC)
	}
	n.Own = true
	f.neighbours[k] = n
	return nil
}

// RemoveNeighbour implements Neighbours.
func (f *Kernel) RemoveNeighbour(link int, a netip.Addr) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.called("RemoveNeighbour"); err != nil {
		return fmt.Errorf("remove neighbour %s: %w", a, err)
	}
	if k := (neighbourKey{link, a}); f.neighbours[k].Own {
		delete(f.neighbours, k)
		f.logf("no neighbour %s dev #%d", a, link)
	}
	return nil
}

// FarEnd implements Neighbours.
func (f *Kernel) FarEnd(link int) (kernel.FarEnd, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	err := f.called("FarEnd")
	e, ok := f.farEnds[link]
	if err == nil && !ok {
		err = unix.ENODEV
	}
	return e, err
}

// PutOverflows sets how often the tables were full.
func (f *Kernel) PutOverflows(o kernel.Overflows) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.overflows = o
}

// NeighbourOverflows implements Neighbours.
func (f *Kernel) NeighbourOverflows() (kernel.Overflows, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.overflows, f.called("NeighbourOverflows")
}
