package dataplane

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"

	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/kernel/echo"
	"github.com/manxnet/manx/dataplane/pathmtu"
)

// EchoOf returns the Config.Probe that asks by ICMP echo, in the network namespace of this process.
func EchoOf(k kernel.Sysctls) func(from, to netip.Addr, mark uint32) (pathmtu.Prober, error) {
	return func(from, to netip.Addr, mark uint32) (pathmtu.Prober, error) { return openEcho(k, from, to, mark) }
}

// openEcho opens a socket for ICMP echo. Where the kernel's default stands, with which nobody may, it permits that to
// the group of this process.
func openEcho(k kernel.Sysctls, from, to netip.Addr, mark uint32) (pathmtu.Prober, error) {
	c, err := echo.Open(from, to, mark)
	if errors.Is(err, echo.ErrNotPermitted) && permitEcho(k) == nil {
		c, err = echo.Open(from, to, mark)
	}
	switch {
	case errors.Is(err, echo.ErrNotPermitted):
		return nil, pathmtu.UnableError{Err: fmt.Errorf("the group %d of manxd is not in the range of the sysctl "+
			"net.ipv4.ping_group_range", os.Getegid())}
	case err != nil:
		return nil, err
	}
	return c, nil
}

// permitEcho changes the sysctl from the kernel's default, an empty range.
func permitEcho(k kernel.Sysctls) error {
	const name = "net/ipv4/ping_group_range"
	have, err := k.Sysctl(name)
	if err != nil {
		return err
	}
	if r := strings.Fields(have); len(r) != 2 || r[0] != "1" || r[1] != "0" {
		return errors.New("another program has set " + name)
	}
	return k.SetSysctl(name, fmt.Sprintf("%d %[1]d", os.Getegid()))
}
