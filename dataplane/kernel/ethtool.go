package kernel

import (
	"fmt"

	"github.com/safchain/ethtool"
	"golang.org/x/sys/unix"
)

// Release returns the release of the running kernel, as uname(2) has it; empty if it is not known.
func Release() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return ""
	}
	return unix.ByteSliceToString(u.Release[:])
}

// txChecksum is the feature of an interface that leaves checksums of packets to the hardware, as ethtool(8) has it. A
// tunnel device passes it on to the interface that sends the outer packet.
const txChecksum = "tx-checksum-ip-generic"

// onEthtool runs f with a socket in the namespace of c.
func (c *Conn) onEthtool(f func(*ethtool.Ethtool) error) error {
	return c.namespace.Do(func() error {
		e, err := ethtool.NewEthtool()
		if err != nil {
			return err
		}
		defer e.Close()
		return f(e)
	})
}

// Hardware describes an interface and the kernel, for people: the name of the driver, its version and firmware.
func (c *Conn) Hardware(device string) string {
	release := "kernel " + Release()
	var info ethtool.DrvInfo
	err := c.onEthtool(func(e *ethtool.Ethtool) (err error) {
		info, err = e.DriverInfo(device)
		return err
	})
	if err != nil {
		return release
	}
	text := "driver " + info.Driver
	if info.Version != "" && info.Version != Release() { // most drivers of the kernel have its version
		text += " " + info.Version
	}
	if info.FwVersion != "" && info.FwVersion != "N/A" {
		text += ", firmware " + info.FwVersion
	}
	return text + ", " + release
}

// TxChecksum implements Links.
func (c *Conn) TxChecksum(device string) (on bool, err error) {
	err = c.onEthtool(func(e *ethtool.Ethtool) error {
		features, err := e.Features(device)
		on = features[txChecksum]
		return err
	})
	if err != nil {
		return false, fmt.Errorf("read %s of interface %s: %w", txChecksum, device, err)
	}
	return on, nil
}

// SetTxChecksum implements Links.
func (c *Conn) SetTxChecksum(device string, on bool) error {
	err := c.onEthtool(func(e *ethtool.Ethtool) error { return e.Change(device, map[string]bool{txChecksum: on}) })
	if err != nil {
		return fmt.Errorf("set %s of interface %s: %w", txChecksum, device, err)
	}
	return nil
}
