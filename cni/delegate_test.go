package cni

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
)

// answers is a Backend that gives the same answer to every request.
type answers Response

func (a answers) Call(context.Context, *Request) (*Response, error) {
	r := Response(a)
	return &r, nil
}

// GC and STATUS go to another IPAM plugin, too, with the configuration that manxd returns.
func TestOtherIPAMPluginHasGCAndStatus(t *testing.T) {
	dir := t.TempDir()
	const script = `#!/bin/sh
read config
echo "$CNI_COMMAND $config" >> "$0.log"
if [ -e "$0.fails" ]; then
	echo '{"cniVersion": "1.1.0", "code": 50, "msg": "other fails"}'
	exit 1
fi
`
	other := filepath.Join(dir, "other")
	if err := os.WriteFile(other, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("CNI_PATH", dir)
	for _, x := range []struct {
		name, ipam string
		answer     answers
		fails      bool   // of the other plugin
		log        string // its calls
		status, gc string // errors
	}{
		{name: "own", ipam: "calico-ipam"},
		{name: "other", ipam: "other", log: "STATUS CONF\nGC CONF\n"},
		{name: "other, with the node's CIDRs", ipam: "other", answer: answers{Config: []byte("{}")},
			log: "STATUS {}\nGC {}\n"},
		{name: "the other one fails", ipam: "other", fails: true, log: "STATUS CONF\nGC CONF\n", status: "other fails",
			gc: "other fails"},
		{name: "both fail", ipam: "other", answer: answers{Error: types.NewError(11, "not ready", "")}, fails: true,
			log: "GC CONF\n", status: "not ready", gc: "not ready\nIPAM plugin other: other fails"},
	} {
		t.Run(x.name, func(t *testing.T) {
			_ = os.Remove(other + ".log")
			_ = os.Remove(other + ".fails")
			if x.fails {
				if err := os.WriteFile(other+".fails", nil, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			conf := `{"cniVersion": "1.1.0", "name": "net", "ipam": {"type": "` + x.ipam + `"}}`
			p := &Plugin{Backend: func(*Config) Backend { return x.answer }, Getenv: os.Getenv}
			check := func(command, want string, do func(*skel.CmdArgs) error) {
				err := do(&skel.CmdArgs{StdinData: []byte(conf)})
				if err == nil && want == "" {
					return
				}
				var coded *types.Error
				if !errors.As(err, &coded) || want == "" || !strings.Contains(err.Error(), want) {
					t.Errorf("%s ends with %v, want %q", command, err, want)
				}
			}
			check("STATUS", x.status, p.Funcs(false).Status)
			check("GC", x.gc, p.Funcs(false).GC)
			log, _ := os.ReadFile(other + ".log")
			if want := strings.ReplaceAll(x.log, "CONF", conf); string(log) != want {
				t.Errorf("the other plugin was called with\n%swant\n%s", log, want)
			}
		})
	}
}
