package device

import (
	"maps"

	"go.uber.org/zap"

	"github.com/manxnet/manx/dataplane/hoststate"
	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/overlay"
)

// AvoidOffload sets the VXLAN devices that shall leave no checksums to the hardware, unless the settings decide that.
// A device that is not among them any more leaves them again. The map must not be changed.
func (t *Target) AvoidOffload(devices map[string]bool) {
	if !maps.Equal(t.avoided, devices) {
		t.avoided = devices
		t.DecideAgain()
	}
}

// wantedChecksum returns whether a device leaves checksums to the hardware, on or off; empty: it stays as it is, since
// an administrator may have changed it.
func (t *Target) wantedChecksum(h *hoststate.Host, d overlay.Device) string {
	if d.Kind != overlay.KindVXLAN {
		return ""
	}
	switch decided := overlay.ChecksumOffload(&h.Felix, t.release); {
	case decided == overlay.OffloadOff, decided == overlay.Undecided && t.avoided[d.Name]:
		return onOff(false)
	case decided == overlay.OffloadOn || t.restore[d.Name]:
		return onOff(true)
	}
	return ""
}

func (t *Target) setChecksum(l kernel.Link, on bool) error {
	if err := t.kernel.SetTxChecksum(l.Name, on); err != nil {
		return err
	}
	if !on {
		t.restore[l.Name] = true
	}
	t.log.Info("the checksum offload of a device was switched", zap.String("device", l.Name),
		zap.String("offload", onOff(on)))
	return nil
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}
