package install

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/manxnet/manx/integration/lab"
	"github.com/manxnet/manx/integration/namespace"
)

// certificates makes an authority, and certificates of etcd's members and of its clients, in the current folder.
const certificates = `
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=ca -keyout ca.key -out ca.crt
for name in server client; do
  openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=$name -keyout $name.key |
    openssl x509 -req -days 365 -CA ca.crt -CAkey ca.key -extfile <(echo "subjectAltName=$1") -out $name.crt
done`

// memberIPs are those of the user guide and of deploy/systemd/manxd.env.
var memberIPs = []string{"10.0.0.5", "10.0.0.6", "10.0.0.7"}

// etcdCluster has three members behind the lab's switch, which want certificates of their clients and of each other.
type etcdCluster struct {
	lab     *lab.Lab
	dir     string // has ca.crt, client.crt, client.key
	members []*lab.Process
}

// newEtcd makes the certificates, starts the members, and gives each node its route to them.
func newEtcd(t *testing.T, l *lab.Lab) *etcdCluster {
	t.Helper()
	for _, program := range []string{"openssl", "etcd"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("%v: Debian packages openssl, etcd-server", err)
		}
	}
	e := &etcdCluster{lab: l, dir: filepath.Join(l.Dir, "etcd"), members: make([]*lab.Process, len(memberIPs))}
	if err := os.Mkdir(e.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	c := exec.Command("bash", "-euc", certificates, "bash", "IP:"+strings.Join(memberIPs, ",IP:"))
	c.Dir = e.dir
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	tor := l.ToRs[0]
	for _, ip := range memberIPs {
		if err := namespace.Batch(tor.Namespace, "addr add "+ip+"/32 dev lo"); err != nil {
			t.Fatal(err)
		}
	}
	for _, n := range l.Nodes {
		if err := namespace.Batch(n.Namespace, "route add 10.0.0.0/24 via "+tor.Address(n).String()); err != nil {
			t.Fatal(err)
		}
	}
	for i := range memberIPs {
		e.start(t, i)
	}
	return e
}

// start runs a member, with its data if it ran before.
func (e *etcdCluster) start(t *testing.T, i int) {
	t.Helper()
	var all []string
	for i, ip := range memberIPs {
		all = append(all, fmt.Sprintf("m%d=https://%s:2380", i, ip))
	}
	client, peer := "https://"+memberIPs[i]+":2379", "https://"+memberIPs[i]+":2380"
	args := []string{fmt.Sprintf("--name=m%d", i), fmt.Sprintf("--data-dir=%s/m%d", e.dir, i), "--unsafe-no-fsync",
		"--log-level=error", "--listen-client-urls=" + client, "--advertise-client-urls=" + client,
		"--listen-peer-urls=" + peer, "--initial-advertise-peer-urls=" + peer,
		"--initial-cluster=" + strings.Join(all, ","), "--client-cert-auth", "--peer-client-cert-auth"}
	for _, prefix := range []string{"--", "--peer-"} {
		args = append(args, prefix+"trusted-ca-file="+e.dir+"/ca.crt", prefix+"cert-file="+e.dir+"/server.crt",
			prefix+"key-file="+e.dir+"/server.key")
	}
	p, err := e.lab.Start("etcd", e.dir, namespace.Command(e.lab.ToRs[0].Namespace, "etcd", args...))
	if err != nil {
		t.Fatal(err)
	}
	e.members[i] = p
}

// copyTo puts the files of a client into /etc/manx/etcd, where only root reads them.
func (e *etcdCluster) copyTo(t *testing.T, m *lab.Machine) {
	t.Helper()
	for _, name := range []string{"ca.crt", "client.crt", "client.key"} {
		text, err := os.ReadFile(filepath.Join(e.dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := m.Run("sh", "-euc", `umask 077; mkdir -p /etc/manx/etcd; printf %s "$2" >"/etc/manx/etcd/$1"`,
			"sh", name, string(text)); err != nil {
			t.Fatal(err)
		}
	}
}
