package main

import (
	"encoding/json"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"
	current "github.com/containernetworking/cni/pkg/types/100"
)

// Whatever a runtime passes, the plugin answers with an error or goes on, but does not fall over.
func FuzzInput(f *testing.F) {
	f.Add(`{"name":"n","ipam":{"type":"calico-ipam"}}`, "IP=10.0.0.1;K8S_POD_NAME=a;K8S_POD_NAMESPACE=b")
	f.Add(`{"cniVersion":"1.0.0","name":"n","ipam":{"type":"x","routes":[{"dst":"10.0.0.0/8"}]},"prevResult":{"cniVersion":"1.0.0","ips":[null,{"address":"10.0.0.1/32","interface":7}],"interfaces":[null]}}`, "=;=")
	f.Add(`{"cniVersion":"0.2.0","name":"n","ipam":{"type":"x"},"prevResult":{"cniVersion":"0.2.0","ip4":{"ip":"10.0.0.1/24"}}}`, "IP=fe80::1%eth0")
	f.Fuzz(func(t *testing.T, conf, args string) {
		c, err := parseConf([]byte(conf))
		a, argsErr := parseArgs(args)
		if err != nil || argsErr != nil {
			return
		}
		call := &call{conf: c, args: &skel.CmdArgs{IfName: "eth0", ContainerID: "c"}, extra: a}
		call.work = newWorkload(c.Name, "node", "c", "eth0", a)
		if key, err := call.work.key(); err == nil && (key.Name == "" || key.Namespace == "") {
			t.Errorf("key is %+v", key)
		}
		if name := call.work.hostIf("cali"); len(name) > 15 {
			t.Errorf("host interface name %q is too long", name)
		}
		addrs, _ := call.previous()
		for _, r := range c.podRoutes(addrs) {
			if !r.IsValid() || r != r.Masked() {
				t.Errorf("route %v is not valid", r)
			}
		}
	})
}

func TestBadIPAMResults(t *testing.T) {
	for name, c := range map[string]struct{ result, want string }{
		"none":         {`{}`, "gave no address"},
		"null":         {`{"ips":[null]}`, "null"},
		"two IPv4":     {`{"ips":[{"address":"10.0.0.1/24"},{"address":"10.0.0.2/24"}]}`, "only one address of each family"},
		"IPv4 in IPv6": {`{"ips":[{"address":"10.0.0.1/24"},{"address":"::ffff:10.0.0.2/120"}]}`, "only one address of each family"},
	} {
		r := &current.Result{}
		if err := json.Unmarshal([]byte(c.result), r); err != nil {
			t.Fatal(err)
		}
		if _, err := onePerFamily(r); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	r := &current.Result{IPs: []*current.IPConfig{{Address: hostNet(netip.MustParseAddr("10.0.0.1"))}, {Address: hostNet(netip.MustParseAddr("fd00::1"))}}}
	if ips, err := onePerFamily(r); err != nil || len(ips) != 2 {
		t.Errorf("one of each: %v, %v", ips, err)
	}
}

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
