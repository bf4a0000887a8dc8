package main

import (
	"os/exec"
	"strings"
	"testing"
)

func TestDatastoreTest(t *testing.T) {
	h := newHost(t)
	run := func(endpoint string) (string, error) {
		cmd := exec.Command(h.dir+"/bin/calico", "-t")
		cmd.Stdin = strings.NewReader(`{"name":"n","ipam":{"type":"calico-ipam"},"etcd_endpoints":"` + endpoint + `"}`)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	if out, err := run(h.etcd.Endpoint); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	if out, err := run("http://127.0.0.1:1"); err == nil || !strings.Contains(out, "127.0.0.1:1") {
		t.Errorf("a datastore that is away: %v: %s", err, out)
	}
}
