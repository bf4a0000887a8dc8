package cni

import (
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
)

func TestNodeName(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "nodename")
	if err := os.WriteFile(file, []byte("Node-1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	host, _ := os.Hostname()
	for name, c := range map[string]struct {
		conf Config
		want string
		code uint
	}{
		"nodename wins":          {conf: Config{Nodename: "a", NodenameFile: file}, want: "a"},
		"file, without line end": {conf: Config{NodenameFile: file, Hostname: "b"}, want: "Node-1"},
		"missing file must be waited for": {conf: Config{NodenameFile: dir + "/no", Hostname: "b"},
			code: types.ErrTryAgainLater},
		"optional file, then hostname": {conf: Config{NodenameFile: dir + "/no", NodenameFileOptional: true,
			Hostname: "b"}, want: "b"},
		"optional file, then the system's": {conf: Config{NodenameFile: dir + "/no", NodenameFileOptional: true},
			want: strings.ToLower(host)},
	} {
		have, err := c.conf.NodeName()
		var coded *types.Error
		if have != c.want || (err != nil) != (c.code != 0) || errors.As(err, &coded) && coded.Code != c.code {
			t.Errorf("%s: %q, %v; want %q, code %d", name, have, err, c.want, c.code)
		}
	}
}

func TestMTU(t *testing.T) {
	dir := t.TempDir()
	for name, content := range map[string]string{"good": " 1430\n", "bad": "big", "negative": "-1"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		conf Config
		file string
		want int
		err  string
	}{
		{Config{MTU: 1500}, "good", 1500, ""},
		{Config{}, "good", 1430, ""},
		{Config{}, "missing", 0, ""},
		{Config{RequireMTUFile: true}, "missing", 0, "not known yet"},
		{Config{}, "bad", 0, "must be a number"},
		{Config{}, "negative", 0, "must be a number"},
	} {
		have, err := c.conf.FindMTU(filepath.Join(dir, c.file))
		if have != c.want || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%+v %s: %d, %v", c.conf, c.file, have, err)
		}
	}
}

// For any input of a runtime, the plugin returns an error or continues; it never panics.
func FuzzInput(f *testing.F) {
	f.Add(`{"name":"n","ipam":{"type":"calico-ipam"}}`, "IP=10.0.0.1;K8S_POD_NAME=a;K8S_POD_NAMESPACE=b")
	f.Add(
		`{"cniVersion":"1.0.0","name":"n","ipam":{"type":"x","routes":[{"dst":"10.0.0.0/8"}]},"prevResult":{"cniVersion":"1.0.0","ips":[null,{"address":"10.0.0.1/32","interface":7}],"interfaces":[null]}}`, "=;=")
	f.Add(
		`{"cniVersion":"0.2.0","name":"n","ipam":{"type":"x"},"prevResult":{"cniVersion":"0.2.0","ip4":{"ip":"10.0.0.1/24"}}}`, "IP=fe80::1%eth0")
	f.Fuzz(func(t *testing.T, conf, args string) {
		c, err := ParseConfig([]byte(conf))
		_, argsErr := ParseArgs(args)
		if err != nil || argsErr != nil {
			return
		}
		call := &call{conf: c, args: &skel.CmdArgs{IfName: "eth0", ContainerID: "c"}}
		_, _ = call.previous()
	})
}

func TestBadIPAMResults(t *testing.T) {
	for name, c := range map[string]struct{ result, want string }{
		"none": {`{}`, "gave no address"},
		"null": {`{"ips":[null]}`, "null"},
		"two IPv4": {`{"ips":[{"address":"10.0.0.1/24"},{"address":"10.0.0.2/24"}]}`,
			"only one address of each family"},
		"IPv4 in IPv6": {`{"ips":[{"address":"10.0.0.1/24"},{"address":"::ffff:10.0.0.2/120"}]}`,
			"only one address of each family"},
	} {
		r := &current.Result{}
		if err := json.Unmarshal([]byte(c.result), r); err != nil {
			t.Fatal(err)
		}
		if _, err := onePerFamily(r); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	r := &current.Result{IPs: []*current.IPConfig{{Address: hostNet(netip.MustParseAddr("10.0.0.1"))},
		{Address: hostNet(netip.MustParseAddr("fd00::1"))}}}
	if ips, err := onePerFamily(r); err != nil || len(ips) != 2 {
		t.Errorf("one of each: %v, %v", ips, err)
	}
}
