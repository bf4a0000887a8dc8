package kernel

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// DefaultProcSysNet is the folder where the kernel shows the variables of a network namespace, proc_sys_net(5).
const DefaultProcSysNet = "/proc/sys/net"

// procSysNet is a folder where the kernel shows the variables of the calling thread's network namespace; empty:
// DefaultProcSysNet. Another one is the same file system, mounted where a container may write to it.
type procSysNet string

func (d procSysNet) dir() string { return cmp.Or(string(d), DefaultProcSysNet) }

// path returns the path of a variable, given its name below net.
func (d procSysNet) path(name string) string { return filepath.Join(d.dir(), name) }

// read returns a variable. It uses the system calls themselves: a new workload has a dozen of them read, and an os.File
// would each time be registered with the runtime's poller.
func (d procSysNet) read(name string) (string, error) {
	path := d.path(name)
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", &fs.PathError{Op: "open", Path: path, Err: err}
	}
	var value [256]byte
	n, err := unix.Read(fd, value[:])
	_ = unix.Close(fd)
	switch {
	case err != nil:
		return "", &fs.PathError{Op: "read", Path: path, Err: err}
	case n == len(value): // longer than the variables of an interface
		data, err := os.ReadFile(path)
		return strings.TrimSuffix(string(data), "\n"), err
	}
	return strings.TrimSuffix(string(value[:n]), "\n"), nil
}

// write sets a variable. The error is a *ReadOnlyError where the folder cannot be written to.
func (d procSysNet) write(name, value string) error {
	err := os.WriteFile(d.path(name), []byte(value), 0)
	if errors.Is(err, unix.EROFS) {
		return &ReadOnlyError{Dir: d.dir()}
	}
	return err
}

// HasIPv6 reports whether the kernel has IPv6 at all, by its variables in a folder; empty: DefaultProcSysNet.
func HasIPv6(dir string) bool {
	_, err := os.Stat(procSysNet(dir).path("ipv6"))
	return err == nil
}

// CheckProcSysNet returns why a folder cannot be that of the variables of the network.
func CheckProcSysNet(dir string) error {
	if !filepath.IsAbs(dir) {
		return fmt.Errorf("%q is no absolute path", dir)
	}
	if _, err := procSysNet(dir).read("ipv4/ip_forward"); err != nil {
		return fmt.Errorf("want %s, or a mount of it: %w", DefaultProcSysNet, err)
	}
	return nil
}

// ReadOnlyError is the error if no variable of the network can be set.
type ReadOnlyError struct{ Dir string }

// Error implements error.
func (e *ReadOnlyError) Error() string {
	return e.Dir + " is read-only here, as in a container that is not privileged: mount the host's " +
		DefaultProcSysNet +
		" at another path, such as /host/proc-sys-net, and name that path with --proc-sys-net or MANX_PROC_SYS_NET"
}

// sysctlPrefix begins the names of Sysctls.
const sysctlPrefix = "net/"

// Sysctl implements Sysctls.
func (c *Conn) Sysctl(name string) (value string, err error) {
	err = c.namespace.Do(func() error {
		value, err = c.sysctls.read(strings.TrimPrefix(name, sysctlPrefix))
		return err
	})
	if err != nil {
		return "", fmt.Errorf("read sysctl %s: %w", name, err)
	}
	return value, nil
}

// SetSysctl implements Sysctls.
func (c *Conn) SetSysctl(name, value string) error {
	err := c.namespace.Do(func() error { return c.sysctls.write(strings.TrimPrefix(name, sysctlPrefix), value) })
	if err != nil {
		return fmt.Errorf("set sysctl %s to %s: %w", name, value, err)
	}
	return nil
}
