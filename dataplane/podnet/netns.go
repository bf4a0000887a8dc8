package podnet

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/dataplane/kernel/device"
)

// ErrNoNetns: the path does not name a network namespace, or not any more.
var ErrNoNetns = errors.New("no such network namespace")

// namespace is an open network namespace.
type namespace struct{ fd int }

func openNetns(path string) (*namespace, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		if errors.Is(err, fs.ErrNotExist) || path == "" {
			return nil, fmt.Errorf("%q: %w", path, ErrNoNetns)
		}
		return nil, fmt.Errorf("network namespace %s: %w", path, err)
	}
	if st.Type != unix.NSFS_MAGIC && st.Type != unix.PROC_SUPER_MAGIC {
		// An empty file stays behind when the mount of a namespace is gone.
		return nil, fmt.Errorf("%s is a file but not a namespace: %w", path, ErrNoNetns)
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("network namespace %s: %w", path, err)
	}
	n := &namespace{fd}
	var own, other unix.Stat_t
	if unix.Stat("/proc/thread-self/ns/net", &own) == nil && unix.Fstat(fd, &other) == nil &&
		own.Dev == other.Dev && own.Ino == other.Ino {
		n.close()
		return nil, fmt.Errorf("%s is this host's own network namespace, not a workload's", path)
	}
	return n, nil
}

func (n *namespace) close() { _ = unix.Close(n.fd) }

// do runs fn on a thread inside the namespace. The thread ends with it, so that no other code can ever run there.
func (n *namespace) do(fn func() error) error {
	result := make(chan error)
	go func() {
		runtime.LockOSThread()
		if err := unix.Setns(n.fd, unix.CLONE_NEWNET); err != nil {
			result <- fmt.Errorf("enter the network namespace: %w", err)
			return
		}
		result <- fn()
	}()
	return <-result
}

// Detach removes the interface ifName from the namespace at path, and hostIf (if not empty) from this one, unless it
// leads to another namespace than that at path: it is then a newer workload's. A namespace or interface that does not
// exist (any more) is no error.
func Detach(path, ifName, hostIf string) error {
	ns, err := openNetns(path)
	if err != nil {
		if errors.Is(err, ErrNoNetns) {
			err = nil
		}
		return errors.Join(err, detachOutside(nil, hostIf))
	}
	defer ns.close()
	return errors.Join(detachInside(ns, path, ifName), detachOutside(ns, hostIf))
}

func detachInside(ns *namespace, path, ifName string) error {
	var h device.Handle
	if err := ns.do(func() (err error) { h, err = device.Open(); return err }); err != nil {
		return fmt.Errorf("in %s: %w", path, err)
	}
	defer h.Close()
	if err := removeVeth(h, ifName); err != nil {
		return fmt.Errorf("in %s: %w", path, err)
	}
	return nil
}

// detachOutside removes hostIf. ns is the workload's namespace; nil if it is not known (any more).
func detachOutside(ns *namespace, hostIf string) error {
	if hostIf == "" {
		return nil
	}
	h, err := device.Open()
	if err != nil {
		return err
	}
	defer h.Close()
	if ns == nil {
		return removeVeth(h, hostIf)
	}
	link, err := h.LinkByName(hostIf)
	if device.Missing(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read interface %s: %w", hostIf, err)
	}
	if id, err := h.GetNetNsIdByFd(ns.fd); err != nil || id < 0 || link.Attrs().NetNsID != id {
		return err
	}
	return removeVeth(h, hostIf)
}

// removeVeth removes a veth by name; anything else of that name is not ours and stays.
func removeVeth(h device.Handle, name string) error {
	link, err := h.LinkByName(name)
	if device.Missing(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read interface %s: %w", name, err)
	}
	if link.Type() != "veth" {
		return fmt.Errorf("interface %s is a %s, not a veth: it is not ours to remove", name, link.Type())
	}
	if err := h.LinkDel(link); err != nil && !device.Missing(err) {
		return fmt.Errorf("remove interface %s: %w", name, err)
	}
	return nil
}

// setSysctl sets a variable under /proc/sys/net of the calling thread's namespace, unless it has that value. It uses
// the system calls themselves: an os.File would also be registered with the runtime's poller, at several times the
// cost.
func setSysctl(value string, path ...string) error {
	file := filepath.Join(append([]string{"/proc/sys/net"}, path...)...)
	fd, err := unix.Open(file, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		if sysctlIs(file, value) {
			return nil // on a file system that is read-only
		}
		return fmt.Errorf("set %s to %s: %w", file, value, err)
	}
	defer unix.Close(fd) //nolint:errcheck // a write took effect at once
	if holds(fd, value) {
		return nil
	}
	if _, err := unix.Pwrite(fd, []byte(value), 0); err != nil {
		return fmt.Errorf("set %s to %s: %w", file, value, err)
	}
	return nil
}

// sysctlIs reports whether the variable in a file has a value.
func sysctlIs(file, value string) bool {
	fd, err := unix.Open(file, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd) //nolint:errcheck // only read
	return holds(fd, value)
}

// holds reports whether the open file of a variable has a value.
func holds(fd int, value string) bool {
	var have [64]byte
	n, err := unix.Pread(fd, have[:], 0)
	return err == nil && string(have[:n]) == value+"\n"
}
