package kerneltest

import (
	"fmt"
	"maps"

	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/dataplane/kernel/tc"
)

// WithoutShaping removes the support of limits of received traffic from the kernel.
func (f *Kernel) WithoutShaping() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.noShaping = true
}

// ListShapes implements Shapes.
func (f *Kernel) ListShapes() (map[string]tc.Shape, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.called("ListShapes"); err != nil {
		return nil, err
	}
	all := map[string]tc.Shape{}
	maps.Copy(all, f.shapes)
	return all, nil
}

// PutShape sets a limit as another program or an earlier run would.
func (f *Kernel) PutShape(device string, s tc.Shape) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.shapes == nil {
		f.shapes = map[string]tc.Shape{}
	}
	f.shapes[device] = s
}

// SetShape implements Shapes.
func (f *Kernel) SetShape(device string, s tc.Shape) error {
	f.mu.Lock()
	err := f.called("SetShape")
	exists := false
	for _, l := range f.links {
		exists = exists || l.Name == s.Interface(device)
	}
	switch {
	case err != nil:
	case !exists:
		err = unix.ENODEV
	case f.noShaping && s.From != "":
		err = tc.ErrNoShaping
	default:
		f.logf("shape %s: %s", device, s)
	}
	f.mu.Unlock()
	if err != nil {
		return fmt.Errorf("limit the bandwidth of %s: %w", s.Interface(device), err)
	}
	f.PutShape(device, s)
	return nil
}

// RemoveShape implements Shapes.
func (f *Kernel) RemoveShape(device string, s tc.Shape) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.called("RemoveShape"); err != nil {
		return fmt.Errorf("end the limit on the bandwidth of %s: %w", s.Interface(device), err)
	}
	delete(f.shapes, device)
	f.logf("end shape %s", device)
	return nil
}
