package main

import (
	"context"
	"slices"
	"strings"
	"testing"

	manxv1 "github.com/manxnet/manx/proto/manx/v1"
)

func TestCalicoCommandLines(t *testing.T) {
	for line, want := range map[string]calicoAction{
		"calico-node":                                                  {become: runNode},
		"calico":                                                       {become: runNode},
		"start_runit":                                                  {become: runNode},
		"calico-node -felix-live -bird-live":                           {checks: []string{checkLive}},
		"calico-node -felix-live -bird6-ready":                         {checks: []string{checkLive, checkBird}},
		"calico-node --bird-ready --felix-ready":                       {checks: []string{checkFelix, checkBird}},
		"calico-node -bird-ready -threshold-time=9s":                   {checks: []string{checkBird}},
		"calico-node -v":                                               {version: true},
		"calico-node -show-status":                                     {status: true},
		"calico component node health --felix-ready":                   {checks: []string{checkFelix}},
		"calico component node status show":                            {status: true},
		"calico component cni install":                                 {become: runInstall},
		"calico component cni ipam":                                    {become: runIPAM},
		"calico component kube-controllers":                            {become: runControllers},
		"calico component kube-controllers --health-port=9":            {become: runControllers},
		"kube-controllers":                                             {become: runControllers},
		"check-status -l":                                              {checks: []string{checkLive}},
		"check-status -r -f /status/status.json":                       {checks: []string{checkFelix, checkBird}},
		"calico health --port=9099 --type=liveness":                    {checks: []string{checkLive}},
		"calico health --port=9099":                                    {checks: []string{checkFelix, checkBird}},
		"calico version":                                               {version: true},
		"calico component kube-controllers kube-controllers-health -l": {checks: []string{checkLive}},
	} {
		words := strings.Fields(line)
		got, err := decideCalico(calicoProgram("/usr/bin/"+words[0]), words[1:])
		if err != nil || !slices.Equal(got.become, want.become) || !slices.Equal(got.checks, want.checks) ||
			got.status != want.status || got.version != want.version || got.says != nil {
			t.Errorf("%s is %+v, %v, want %+v", line, got, err, want)
		}
	}
}

func TestCalicoTasks(t *testing.T) {
	for line, lasts := range map[string]bool{
		"calico-node -init -best-effort":                                      false,
		"calico-node -startup -complete-startup":                              false,
		"calico-node -shutdown":                                               false,
		"calico-node -hostpath-init":                                          false,
		"calico-node -allocate-tunnel-addrs -allocate-tunnel-addrs-run-once":  false,
		"calico-node -confd -confd-run-once -confd-confdir=/etc/calico/confd": false,
		"calico component node allocate-tunnel-addrs --run-once":              false,
		"calico component node shutdown":                                      false,
		"calico-node -allocate-tunnel-addrs":                                  true,
		"calico-node -monitor-addresses":                                      true,
		"calico-node -monitor-token":                                          true,
		"calico-node -status-reporter":                                        true,
		"calico-node -complete-startup":                                       true,
		"calico-node -felix":                                                  true,
		"calico-node -confd":                                                  true,
		"calico component felix":                                              true,
		"calico component node node-services":                                 true,
		"calico component node status report":                                 true,
	} {
		words := strings.Fields(line)
		got, err := decideCalico(words[0], words[1:])
		if err != nil || got.says == nil || got.lasts != lasts || got.become != nil {
			t.Errorf("%s is %+v, %v, want lasts %v", line, got, err, lasts)
		}
	}
}

func TestCalicoMistakes(t *testing.T) {
	for line, want := range map[string]string{
		"calico-node -felix-alive":                 "-felix-alive",
		"calico-node -felix-live now":              `unexpected argument "now"`,
		"calico-node -best-effort":                 "nothing to do",
		"calico-node -bpf":                         "no eBPF data plane",
		"calico component node flows -n 5":         "manxctl drops",
		"calico component typha":                   `no component "typha"`,
		"calico component node":                    "want a command",
		"calico component node health":             "want a check",
		"calico component cni":                     "want install",
		"calico ctl":                               "want component",
		"calico health --port=1 --type=startup":    "want readiness or liveness",
		"check-status":                             "want -l or -r",
		"kube-controllers --kubeconfig=/etc/admin": "kubeconfig",
	} {
		var err strings.Builder
		words := strings.Fields(line)
		c := &cli{out: &strings.Builder{}, err: &err, env: func(string) string { return "" }}
		code := c.runCalico(context.Background(), words[0], words[1:], nil)
		if code == 0 || !strings.Contains(err.String(), want) || strings.Count(err.String(), "\n") != 1 {
			t.Errorf("%s: exit code %d, %q, want %q", line, code, err.String(), want)
		}
	}
}

// The readiness of BIRD is that of BGP; the readiness of Felix is that of all else.
func TestReadinessOfFelixAndBird(t *testing.T) {
	checks := []*manxv1.Check{{Name: "bgp", Reason: "waits\nfor a peer"}, {Name: "policy", Reason: "not started"},
		{Name: "datastore", Ok: true, Reason: "in sync"}}
	for _, x := range []struct {
		felix, bird bool
		want        string
	}{{true, false, "not ready: policy: not started"}, {false, true, "not ready: bgp: waits; for a peer"},
		{true, true, "not ready: bgp: waits; for a peer; policy: not started"}} {
		if err := notReady(checks, x.felix, x.bird); err == nil || err.Error() != x.want {
			t.Errorf("felix %v, bird %v: %v, want %s", x.felix, x.bird, err, x.want)
		}
	}
	if err := notReady(checks[2:], true, true); err != nil {
		t.Error(err)
	}
}

// calicoctl's -l LEVEL is taken wherever it is among the global flags, and stays a selector behind the command.
func TestShortLogLevel(t *testing.T) {
	flags := (&cli{env: func(string) string { return "" }}).root().PersistentFlags()
	for line, want := range map[string]string{
		"-l info get nodes":                        "--log-level info get nodes",
		"-l=debug get nodes":                       "--log-level=debug get nodes",
		"-ldebug get nodes":                        "--log-level=debug get nodes",
		"-c cc.cfg -l info get node":               "-c cc.cfg --log-level info get node",
		"--config cc.cfg -l info get nodes -l a=b": "--config cc.cfg --log-level info get nodes -l a=b",
		"--allow-version-mismatch -l debug get nodes -l a=b": "" +
			"--allow-version-mismatch --log-level debug get nodes -l a=b",
		"get nodes -l a=b":              "get nodes -l a=b",
		"--config=cc.cfg get -l a=b":    "--config=cc.cfg get -l a=b",
		"--context -l get nodes -l a=b": "--context -l get nodes -l a=b",
	} {
		if got := strings.Join(withoutShortLevel(strings.Fields(line), flags), " "); got != want {
			t.Errorf("%s becomes %s, want %s", line, got, want)
		}
	}
}
