package install

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/manxnet/manx/integration/lab"
	"github.com/manxnet/manx/integration/namespace"
)

// certificates makes an authority, and certificates of etcd and of its clients, in the current folder.
const certificates = `
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=ca -keyout ca.key -out ca.crt
for name in server client; do
  openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=$name -keyout $name.key |
    openssl x509 -req -CA ca.crt -CAkey ca.key -extfile <(echo subjectAltName=IP:$1) -out $name.crt
done`

// transport stands in for ssh: Ansible's commands run on the machine whose systemd has the process number in the file
// with the name of the host.
const transport = `#!/bin/bash
host=${*: -2:1} command=${*: -1}
exec nsenter -t "$(cat "$(dirname "$0")/$host.pid")" -m -u -i -p -n -C -- sh -c "cd /root; $command"
`

// TestAnsible installs three hosts of one rack with the role, with an etcd that wants certificates of its clients. A
// second run changes nothing. A host whose address is not on the switch's subnet is refused before it is changed.
func TestAnsible(t *testing.T) {
	for _, program := range []string{"ansible-playbook", "openssl", "etcd"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("%v: Debian packages ansible-core, openssl, etcd-server", err)
		}
	}
	t.Parallel() // it has a lab of its own, and mostly waits
	l, list := machines(t, "i", "n1", "n2", "n3")
	dir, tor := t.TempDir(), l.ToRs[0]
	switchIP := tor.Address(l.Nodes[0]).String()
	write := func(name, text string, mode os.FileMode) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
	c := exec.Command("bash", "-euc", certificates, "bash", switchIP)
	c.Dir = dir
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	at := "https://" + switchIP + ":2379"
	if _, err := l.Start("etcd", dir, namespace.Command(tor.Namespace, "etcd", "--data-dir="+dir+"/etcd",
		"--unsafe-no-fsync", "--log-level=error", "--listen-client-urls="+at, "--advertise-client-urls="+at,
		"--listen-peer-urls=http://127.0.0.1:2380", "--client-cert-auth", "--trusted-ca-file="+dir+"/ca.crt",
		"--cert-file="+dir+"/server.crt", "--key-file="+dir+"/server.key")); err != nil {
		t.Fatal(err)
	}
	inventory := "[manx]\n"
	for i, n := range l.Nodes {
		write(n.Name+".pid", list[i].PID(), 0o644)
		inventory += fmt.Sprintf("%s manx_address=%s\n", n.Name, n.IP4)
	}
	inventory += fmt.Sprintf("[manx:vars]\nansible_become=false\nmanx_peer=%s\nmanx_programs=%s\n"+
		"manx_etcd_certificates=%s\nmanx_etcd_endpoints=['%s']\nmanx_settings={'NO_DEFAULT_POOLS': 'true'}\n",
		switchIP, l.Spec.Bin, dir, at)
	write("hosts", inventory, 0o644)
	write("ssh", transport, 0o755)
	play := func(args ...string) (string, error) {
		ctx, cancel := context.WithTimeout(context.Background(), 8*time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, "ansible-playbook", append([]string{"-i", dir + "/hosts",
			root + "/deploy/ansible/site.yaml"}, args...)...)
		cmd.Env = append(os.Environ(), "ANSIBLE_SSH_EXECUTABLE="+dir+"/ssh", "ANSIBLE_SSH_TRANSFER_METHOD=piped",
			"ANSIBLE_PIPELINING=true", "ANSIBLE_HOST_KEY_CHECKING=false", "ANSIBLE_PYTHON_INTERPRETER=/usr/bin/python3",
			"ANSIBLE_LOCAL_TEMP="+dir+"/tmp", "ANSIBLE_NOCOLOR=true")
		out, err := cmd.CombinedOutput()
		return string(out), err
	}

	out, err := play("-l", "n1", "-e", "manx_address=10.200.9.9")
	if err == nil || !strings.Contains(out, switchIP+" is not on a subnet of manx_address 10.200.9.9") {
		t.Errorf("an address off the switch's subnet: %v\n%s", err, out)
	}
	if out, err := list[0].Run("ls", "/usr/local/bin/manxd"); err == nil {
		t.Errorf("a host that is refused was changed: %s", out)
	}
	if out, err := play(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, m := range list {
		if err := lab.Eventually(limit, func() error { _, err := m.Run("manxctl", "status"); return err }); err != nil {
			t.Error(err)
		}
	}
	sessions, err := exec.Command("birdc", "-s", filepath.Join(l.Dir, tor.Name, "bird.ctl"), "show",
		"protocols").CombinedOutput()
	if n := strings.Count(string(sessions), "Established"); err != nil || n != len(list) {
		t.Errorf("the switch has %d sessions: %v\n%s", n, err, sessions)
	}
	out, err = play()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if n := len(regexp.MustCompile(`(?m)^n\d .* changed=0 .*failed=0 `).FindAllString(out, -1)); n != len(list) {
		t.Errorf("%d of %d hosts are without a change in the second run:\n%s", n, len(list), out)
	}
}
