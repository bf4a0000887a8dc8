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
)

// transport stands in for ssh: Ansible's commands run on the machine whose systemd has the process number in the file
// with the name of the host.
const transport = `#!/bin/bash
host=${*: -2:1} command=${*: -1}
exec nsenter -t "$(cat "$(dirname "$0")/$host.pid")" -m -u -i -p -n -C -- sh -c "cd /root; $command"
`

// TestAnsible installs three hosts of one rack with the role, with an etcd of three members that want certificates. A
// second run changes nothing. A host whose address is not on the switch's subnet is refused before it is changed.
func TestAnsible(t *testing.T) {
	if _, err := exec.LookPath("ansible-playbook"); err != nil {
		t.Skipf("%v: Debian package ansible-core", err)
	}
	t.Parallel() // it has a lab of its own, and mostly waits
	l, list := machines(t, "i", "n1", "n2", "n3")
	e := newEtcd(t, l)
	dir, tor := e.dir, l.ToRs[0]
	switchIP := tor.Address(l.Nodes[0]).String()
	write := func(name, text string, mode os.FileMode) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
	inventory := "[manx]\n"
	for i, n := range l.Nodes {
		write(n.Name+".pid", list[i].PID(), 0o644)
		inventory += fmt.Sprintf("%s manx_address=%s\n", n.Name, n.IP4)
	}
	inventory += fmt.Sprintf("[manx:vars]\nansible_become=false\nmanx_peer=%s\nmanx_programs=%s\n"+
		"manx_etcd_certificates=%s\nmanx_etcd_endpoints=['https://%s:2379']\nmanx_settings={'NO_DEFAULT_POOLS': "+
		"'true'}\n", switchIP, l.Spec.Bin, dir, strings.Join(memberIPs, ":2379', 'https://"))
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
