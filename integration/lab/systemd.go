package lab

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/manxnet/manx/integration/namespace"
)

// Machine is a node whose manxd runs under the shipped unit: its own systemd is process 1 of a PID, mount and cgroup
// namespace within the node's network namespace, on folders of the lab in place of /etc, /run, /var/lib, /var/log and
// /usr/local/bin. Nothing of the unit is imitated; systemd makes the user, the capabilities, the read-only file system
// and the filter of system calls.
type Machine struct {
	node *Node
	root string
	pid  string // of systemd, as the host counts
}

// systemd is Debian's program. Its package may also be installed on a host with another init.
const systemd = "/lib/systemd/systemd"

// boot is run as process 1: $1 is the folder that has the machine's own folders. It follows the user guide's
// installation.
const boot = `set -eu
mount -t proc proc /proc
for d in etc run var/lib var/log usr/local/bin; do mount --bind "$1/$d" "/$d"; done
mount -t cgroup2 cgroup2 /sys/fs/cgroup
systemd-sysusers manx.conf
systemd-tmpfiles --create manx.conf
export container=lab SYSTEMD_UNIT_PATH=/etc/systemd/system
exec ` + systemd + ` --system --unit=multi-user.target --show-status=no --log-target=console --log-level=notice`

// baseFiles of /etc are read by the C library, systemd and manxd.
var baseFiles = []string{"passwd", "group", "shadow", "gshadow", "nsswitch.conf", "hosts", "ld.so.cache", "machine-id",
	"os-release"}

// Boot starts systemd on the node, and with it the unit manxd.service of the folder deploy, with these arguments for
// manxd beside its name. Lines of settings go into the section [Service] of a drop-in, after those that the lab needs
// to read the log. The files of manxd have their default paths; the lab finds them as after StartManxd.
func (n *Node) Boot(deploy string, settings []string, args ...string) (*Machine, error) {
	if _, err := os.Stat(systemd); err != nil {
		return nil, errors.New("systemd is not installed")
	}
	m := &Machine{node: n, root: filepath.Join(n.Dir, "machine")}
	n.args = args
	if slices.Contains(args, "--datastore=embedded") {
		n.outside = n.EtcdSocket()
	}
	if err := errors.Join(m.install(deploy), m.Configure(settings...), m.link()); err != nil {
		return nil, fmt.Errorf("machine %s: %w", n.Name, err)
	}
	var err error
	n.manxd, err = n.lab.start("systemd", n.Dir,
		namespace.Command(n.Namespace, "unshare", "--mount", "--pid", "--fork", "--cgroup", "--ipc", "--uts",
			"--kill-child=KILL", "sh", "-c", boot, "boot", m.root))
	if err != nil {
		return nil, err
	}
	return m, Eventually(time.Minute, m.awaitUp)
}

// install follows the steps of the user guide, below root.
func (m *Machine) install(deploy string) error {
	var errs []error
	for _, dir := range []string{"etc/systemd/system/multi-user.target.wants", "etc/sysusers.d", "etc/tmpfiles.d",
		"run", "var/lib", "var/log", "usr/local/bin"} {
		errs = append(errs, os.MkdirAll(filepath.Join(m.root, dir), 0o755))
	}
	for _, name := range baseFiles {
		if err := m.copy(filepath.Join("/etc", name), "etc/"+name, 0o644); err != nil &&
			!errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	errs = append(errs,
		m.copy(filepath.Join(deploy, "manxd.service"), "etc/systemd/system/manxd.service", 0o644),
		m.copy(filepath.Join(deploy, "manx-sysusers.conf"), "etc/sysusers.d/manx.conf", 0o644),
		m.copy(filepath.Join(deploy, "manx-tmpfiles.conf"), "etc/tmpfiles.d/manx.conf", 0o644),
		m.copy(filepath.Join(deploy, "manx-birdsock.service"), "etc/systemd/system/manx-birdsock.service", 0o644),
		m.copy(filepath.Join(m.node.lab.Spec.Bin, "manxd"), "usr/local/bin/manxd", 0o755),
		m.copy(filepath.Join(m.node.lab.Spec.Bin, "manx-birdsock"), "usr/local/bin/manx-birdsock", 0o755),
		os.Symlink("../manxd.service", filepath.Join(m.root,
			"etc/systemd/system/multi-user.target.wants/manxd.service")))
	// No service of the host is started: these targets replace the ones that the unit and systemd name.
	for _, target := range []string{"sysinit", "basic", "shutdown", "network-online", "multi-user"} {
		errs = append(errs, m.Write("etc/systemd/system/"+target+".target", "[Unit]\nDefaultDependencies=no\n"))
	}
	return errors.Join(errs...)
}

func (m *Machine) copy(from, to string, mode os.FileMode) error {
	text, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(m.root, to), text, mode)
}

// Write makes a file of the machine, readable for all its users.
func (m *Machine) Write(path, text string) error {
	full := m.Path(path)
	return errors.Join(os.MkdirAll(filepath.Dir(full), 0o755), os.WriteFile(full, []byte(text), 0o644))
}

// Path returns the path, for this process, of a file below one of the machine's own folders.
func (m *Machine) Path(path string) string { return filepath.Join(m.root, path) }

// Configure writes the drop-in, which applies from the next start on.
func (m *Machine) Configure(settings ...string) error {
	command := append([]string{"/usr/local/bin/manxd", "--node-name=" + m.node.Name, "--log-format=text"},
		m.node.args...)
	log := "append:" + filepath.Join(m.node.Dir, "manxd.log")
	lines := append([]string{"[Service]", "ExecStart=", "ExecStart=" + strings.Join(command, " "),
		"StandardOutput=" + log, "StandardError=" + log}, settings...)
	return m.Write("etc/systemd/system/manxd.service.d/lab.conf", strings.Join(lines, "\n")+"\n")
}

// link makes links to manxd's files at the paths that the lab expects.
func (m *Machine) link() error {
	var errs []error
	for name, path := range map[string]string{"run": "run/manx", "data": "var/lib/manx",
		"nodename": "var/lib/calico/nodename", "mtu": "var/lib/calico/mtu",
		"endpoint-status": "run/calico/endpoint-status"} {
		errs = append(errs, os.Symlink(m.Path(path), filepath.Join(m.node.Dir, name)))
	}
	return errors.Join(errs...)
}

// awaitUp finds systemd and waits until it accepts commands.
func (m *Machine) awaitUp() error {
	select {
	case <-m.node.manxd.Done():
		return errors.New("systemd has ended:\n" + m.Log())
	default:
	}
	// ip(8) and then unshare(1) are one process; its child is systemd.
	pid := strconv.Itoa(m.node.manxd.PID())
	children, err := os.ReadFile(filepath.Join("/proc", pid, "task", pid, "children"))
	if err != nil {
		return err
	}
	if m.pid = strings.TrimSpace(string(children)); m.pid == "" {
		return errors.New("systemd is not running yet")
	}
	_, err = m.Run("systemctl", "show", "manxd", "-p", "ActiveState")
	return err
}

// Log is the output of systemd so far.
func (m *Machine) Log() string {
	text, err := os.ReadFile(filepath.Join(m.node.Dir, "systemd.log"))
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// Run runs a program as root of the machine and returns its output.
func (m *Machine) Run(name string, args ...string) (string, error) {
	return command("nsenter", append([]string{"-t", m.pid, "-m", "-u", "-i", "-p", "-n", "-C", "--", name}, args...)...)
}

// Property is a property of the unit, as systemctl(1) shows it.
func (m *Machine) Property(name string) (string, error) {
	out, err := m.Run("systemctl", "show", "manxd", "-P", name)
	return strings.TrimSpace(out), err
}

// Restart restarts manxd with the current drop-in.
func (m *Machine) Restart() error {
	if _, err := m.Run("systemctl", "daemon-reload"); err != nil {
		return err
	}
	_, err := m.Run("systemctl", "restart", "manxd")
	return err
}
