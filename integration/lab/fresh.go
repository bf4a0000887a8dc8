package lab

import (
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/manxnet/manx/integration/namespace"
)

// fresh is run as process 1: $1 is an empty folder in memory, $2 a folder that the machine has at /mnt, $3 its name.
// The machine sees the packages and users of this host, but none of its services, and nothing of Manx.
const fresh = `set -eu
mount --make-rprivate /
mkdir "$1/changes" "$1/work" "$1/root"
mount -t overlay overlay -o lowerdir=/,upperdir="$1/changes",workdir="$1/work" "$1/root"
mount --rbind "$2" "$1/root/mnt"
cd "$1/root"
rm -rf etc/manx etc/cni opt/cni etc/sysusers.d/manx.conf etc/tmpfiles.d/manx.conf usr/local/bin/manx* var/lib/manx \
  var/lib/calico var/log/manx
sed -i /^manx:/d etc/passwd etc/shadow
sed -i /^manx:/d etc/group etc/gshadow
mount -t proc proc proc
mount --rbind /sys sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount --rbind /dev dev
for d in run tmp etc/systemd/system usr/lib/systemd/system; do mount -t tmpfs tmpfs "$d"; done
chmod 1777 tmp
for target in sysinit basic shutdown network-online multi-user; do
  printf '[Unit]\nDefaultDependencies=no\n' >"etc/systemd/system/$target.target"
done
echo "$3" >etc/hostname
mkdir run/before
pivot_root . run/before
cd /
umount -l /run/before
exec env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin container=lab \
  SYSTEMD_UNIT_PATH=/etc/systemd/system:/usr/lib/systemd/system ` + systemd +
	` --system --unit=multi-user.target --show-status=no --log-target=console --log-level=notice`

// BootFresh starts systemd on the node, as on a new machine of this distribution: what is installed there changes
// nothing here, and goes with the lab. The machine has the folder shared at /mnt.
func (n *Node) BootFresh(shared string) (*Machine, error) {
	if _, err := os.Stat(systemd); err != nil {
		return nil, errors.New("systemd is not installed")
	}
	m := &Machine{node: n, root: filepath.Join(n.Dir, "machine")}
	if err := os.Mkdir(m.root, 0o755); err != nil {
		return nil, err
	}
	var err error
	n.manxd, err = n.lab.start("systemd", n.Dir,
		namespace.Command(n.Namespace, "unshare", "--mount", "--pid", "--fork", "--cgroup", "--ipc", "--uts",
			"--kill-child=KILL", "sh", "-c", fresh, "fresh", m.root, shared, n.Name))
	if err != nil {
		return nil, err
	}
	return m, Eventually(time.Minute, m.awaitUp)
}

// PID is the process number of the machine's systemd on this host.
func (m *Machine) PID() string { return m.pid }
