package dataplane

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"strconv"
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

// pingGroupRange is the sysctl of the groups that may open sockets for ICMP echo. The kernel's default is an empty
// range.
const pingGroupRange = "net/ipv4/ping_group_range"

// permitEcho changes the sysctl from the kernel's default.
func permitEcho(k kernel.Sysctls) error {
	first, last, err := pingGroups(k)
	switch {
	case err != nil:
		return err
	case first != "1" || last != "0":
		return errors.New("another program has set " + pingGroupRange)
	}
	return k.SetSysctl(pingGroupRange, ownGroup()+" "+ownGroup())
}

// forbidEcho has the sysctl the kernel's default again if it names the group of this process alone. It stays where no
// variable can be set.
func forbidEcho(k kernel.Sysctls) error {
	first, last, err := pingGroups(k)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil || first != ownGroup() || last != ownGroup():
		return err
	}
	if err = k.SetSysctl(pingGroupRange, "1 0"); errors.As(err, new(*kernel.ReadOnlyError)) {
		return nil
	}
	return err
}

func ownGroup() string { return strconv.Itoa(os.Getegid()) }

// pingGroups returns the first and the last group of the sysctl.
func pingGroups(k kernel.Sysctls) (first, last string, err error) {
	have, err := k.Sysctl(pingGroupRange)
	if r := strings.Fields(have); len(r) == 2 {
		return r[0], r[1], err
	}
	return "", "", err
}
