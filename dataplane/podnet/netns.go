package podnet

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// ErrNoNetns: the path does not name a network namespace, or not any more.
var ErrNoNetns = errors.New("no such network namespace")

// namespace is an open network namespace.
type namespace struct{ handle netns.NsHandle }

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
	handle, err := netns.GetFromPath(path)
	if err != nil {
		return nil, fmt.Errorf("network namespace %s: %w", path, err)
	}
	if own, err := netns.Get(); err == nil {
		same := own.Equal(handle)
		_ = own.Close()
		if same {
			_ = handle.Close()
			return nil, fmt.Errorf("%s is this host's own network namespace, not a workload's", path)
		}
	}
	return &namespace{handle: handle}, nil
}

func (n *namespace) close() { _ = n.handle.Close() }

// do runs fn on a thread inside the namespace. The thread ends with it, so that no other code can ever run there.
func (n *namespace) do(fn func() error) error {
	result := make(chan error)
	go func() {
		runtime.LockOSThread()
		if err := netns.Set(n.handle); err != nil {
			result <- fmt.Errorf("enter the network namespace: %w", err)
			return
		}
		result <- fn()
	}()
	return <-result
}

// Detach removes the interface ifName from the namespace at path, and hostIf (if not empty) from this one. A
// namespace or interface that does not exist (any more) is no error.
func Detach(path, ifName, hostIf string) error {
	return errors.Join(detachInside(path, ifName), detachOutside(hostIf))
}

func detachInside(path, ifName string) error {
	if path == "" {
		return nil
	}
	ns, err := openNetns(path)
	if errors.Is(err, ErrNoNetns) {
		return nil
	}
	if err != nil {
		return err
	}
	defer ns.close()
	h, err := netlink.NewHandleAt(ns.handle, unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open netlink in %s: %w", path, err)
	}
	defer h.Close()
	if err := removeVeth(h, ifName); err != nil {
		return fmt.Errorf("in %s: %w", path, err)
	}
	return nil
}

func detachOutside(hostIf string) error {
	if hostIf == "" {
		return nil
	}
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open netlink: %w", err)
	}
	defer h.Close()
	return removeVeth(h, hostIf)
}

// removeVeth removes a veth by name; anything else of that name is not ours and stays.
func removeVeth(h *netlink.Handle, name string) error {
	link, err := h.LinkByName(name)
	if linkMissing(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read interface %s: %w", name, err)
	}
	if link.Type() != "veth" {
		return fmt.Errorf("interface %s is a %s, not a veth: it is not ours to remove", name, link.Type())
	}
	if err := h.LinkDel(link); err != nil && !linkMissing(err) {
		return fmt.Errorf("remove interface %s: %w", name, err)
	}
	return nil
}

func linkMissing(err error) bool {
	var missing netlink.LinkNotFoundError
	return errors.As(err, &missing) || errors.Is(err, unix.ENODEV)
}

// setSysctl sets a variable under /proc/sys/net of the calling thread's namespace, unless it has that value.
func setSysctl(value string, path ...string) error {
	file := filepath.Join(append([]string{"/proc/sys/net"}, path...)...)
	if have, err := os.ReadFile(file); err == nil && string(have) == value+"\n" {
		return nil
	}
	if err := os.WriteFile(file, []byte(value), 0); err != nil {
		return fmt.Errorf("set %s to %s: %w", file, value, err)
	}
	return nil
}
