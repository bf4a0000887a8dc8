package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/spf13/pflag"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/manxnet/manx/daemon/deps"
	"github.com/manxnet/manx/daemon/envflag"
	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/felixconfig"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/datastore/settings"
)

// A setting that would leave the node unprotected or unreachable keeps it from being ready, with the two ways out,
// until it is withdrawn or accepted; others are notices. Both follow the datastore.
func TestCalicoSettingsFollowTheDatastore(t *testing.T) {
	tables := datastore.NewTables(zap.NewNop(), "")
	d := deps.Deps{Tables: tables, Node: deps.Node{Name: "n1",
		Felix: felixconfig.NewLocal(nil, "/etc/calico/felix.cfg", "nonsense")}}
	strict, accepting := newCalicoSettings(d, acceptOptions{}), newCalicoSettings(d, acceptOptions{"bpfEnabled"})
	revision := int64(0)
	store := func(fill func(*model.FelixConfigurationSpec)) {
		f := &model.FelixConfiguration{}
		f.Name, revision = "default", revision+1
		fill(&f.Spec)
		key := model.ResourceKey(model.KindFelixConfiguration, "default")
		tables.Apply(datastore.Event{Type: datastore.EventUpdate, Key: key, Revision: revision,
			Object: &model.Object{Key: key, Value: f, Revision: revision}},
			datastore.Event{Type: datastore.EventInSync, Revision: revision})
	}
	notices := func(c *calicoSettings) string {
		var lines []string
		for _, n := range c.Notices() {
			lines = append(lines, n.Subject+": "+n.Text)
		}
		return strings.Join(lines, "\n")
	}
	const file = "felix.cfg: /etc/calico/felix.cfg, line 1: want KEY = VALUE"
	store(func(*model.FelixConfigurationSpec) {})
	if len(strict.Checks()) > 0 || notices(strict) != file {
		t.Errorf("nothing is set: %v, %s", strict.Checks(), notices(strict))
	}
	yes, port := true, 9098
	store(func(s *model.FelixConfigurationSpec) { s.BPFEnabled, s.DebugPort = &yes, &port })
	const reason = "bpfEnabled is true (FelixConfiguration/default), not done: Manx has no eBPF data plane: where it " +
		"takes the place of kube-proxy, pods of a Manx node reach no Service. Withdraw the setting, or accept the " +
		"consequence with --accept-settings=bpfEnabled (MANX_ACCEPT_SETTINGS)"
	if c := strict.Checks(); len(c) != 1 || c[0].OK || c[0].Reason != reason {
		t.Errorf("checks are %+v", c)
	}
	const debug = "debugPort: 9098 (FelixConfiguration/default) is not done: manxd serves no profiles\n" + file
	if got := notices(strict); got != debug {
		t.Errorf("notices are %s", got)
	}
	if c := accepting.Checks(); len(c) > 0 {
		t.Errorf("accepted, but %+v", c)
	}
	const accepted = "bpfEnabled: true (FelixConfiguration/default) is not done: "
	if got := notices(accepting); !strings.HasPrefix(got, accepted) ||
		!strings.HasSuffix(got, "reach no Service (accepted with --accept-settings)\n"+debug) {
		t.Errorf("notices are %s", got)
	}
	if err := testutil.CollectAndCompare(strict, strings.NewReader(`
# HELP manx_calico_settings Settings of Calico that are set for this node and that Manx does not have, by what follows: not_ready, notice.
# TYPE manx_calico_settings gauge
manx_calico_settings{consequence="not_ready"} 1
manx_calico_settings{consequence="notice"} 1
`)); err != nil {
		t.Error(err)
	}
	store(func(*model.FelixConfigurationSpec) {})
	strict.ipvs.Store(true)
	if c := strict.Checks(); len(c) != 1 || !strings.Contains(c[0].Reason, "kube-proxy-ipvs") {
		t.Errorf("with IPVS: %+v", c)
	}
	strict.ipvs.Store(false)
	if len(strict.Checks()) > 0 || notices(strict) != file {
		t.Errorf("withdrawn: %v, %s", strict.Checks(), notices(strict))
	}
}

// What this host sets wrong is in the log.
func TestWrongSettingsAreLogged(t *testing.T) {
	core, log := observer.New(zap.InfoLevel)
	c := newCalicoSettings(deps.Deps{Log: zap.New(core), Node: deps.Node{
		Felix: felixconfig.NewLocal([]string{"FELIX_IPINIPMTU=big"}, "felix.cfg", "nonsense")}}, acceptOptions{})
	c.logWrong()
	var texts []string
	for _, l := range log.All() {
		texts = append(texts, fmt.Sprint(l.ContextMap()))
	}
	const want = "map[error:want a number source:FELIX_IPINIPMTU in the environment] " +
		"map[reason:felix.cfg, line 1: want KEY = VALUE]"
	if got := strings.Join(texts, " "); got != want {
		t.Errorf("the log has %s, want %s", got, want)
	}
}

func TestAcceptedSettingsHaveToExist(t *testing.T) {
	o := acceptOptions{"bpfEnabled, wireguardEnabled"}
	must(t, o.Check())
	o.list = "bpfEnabled,ebpf"
	const want = "--accept-settings=ebpf: want AdminNetworkPolicy, "
	if err := o.Check(); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v", err)
	}
}

// "manxd config explain --calico" has what is set here, and --all every setting.
func TestExplainCalico(t *testing.T) {
	t.Setenv("FELIX_BPFENABLED", "true")
	t.Setenv("FELIX_IPINIPMTU", "1400")
	t.Setenv("CALICO_NETWORKING_BACKEND", "none")
	t.Setenv("FELIX_WIREGUARDENABLED", "false")
	t.Setenv("CALICO_NETWORKING", "true")
	felix := filepath.Join(t.TempDir(), "felix.cfg")
	must(t, os.WriteFile(felix, []byte("nonsense\n"), 0o600))
	explain := func(args ...string) string {
		var out, complaints bytes.Buffer
		root := rootCommand()
		root.SetOut(&out)
		root.SetErr(&complaints)
		root.SetArgs(append([]string{"config", "explain", "--calico", "--env-file=", "--run-dir=" + t.TempDir(),
			"--node-name=n1", "--datastore=embedded", "--felix-config-file=" + felix}, args...))
		must(t, root.Execute())
		if all := len(args) > 0; all != (complaints.Len() == 0) {
			t.Errorf("%v: complaints: %s", args, complaints.String())
		}
		return strings.Join(strings.Fields(out.String()), " ")
	}
	got := explain()
	if !strings.HasPrefix(got, "The environment and felix.cfg are those that this command sees, ") {
		t.Errorf("it does not begin with whose environment it is: %s", got)
	}
	for _, want := range []string{
		"SETTING VALUE SOURCE WHAT MANX DOES bpfEnabled true FELIX_BPFENABLED in the environment not done: ",
		"reach no Service (the node is not ready: --accept-settings) ipipMTU 1400 FELIX_IPINIPMTU in the " +
			"environment done ",
		"CALICO_NETWORKING_BACKEND none CALICO_NETWORKING_BACKEND in the environment not done: ",
		"wireguardEnabled false FELIX_WIREGUARDENABLED in the environment no effect: ",
		"CALICO_NETWORKING true CALICO_NETWORKING in the environment no effect: ",
		"- " + felix + ", line 1: want KEY = VALUE not used: "} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in %s", want, got)
		}
	}
	all := explain("--all")
	for _, r := range settings.Rows() {
		if !strings.Contains(all, r.Place+" "+r.Name+" ") {
			t.Errorf("--all has no %s %s", r.Place, r.Name)
		}
	}
}

// Every variable of manxd that calico/node has, too, has a row that says so.
func TestVariablesOfManxdAreInTheTable(t *testing.T) {
	var o options
	fs := pflag.NewFlagSet("manxd", pflag.ContinueOnError)
	o.flags(fs)
	fs.VisitAll(func(f *pflag.Flag) {
		variables, _ := envflag.Variables(f)
		for _, v := range variables {
			if strings.HasPrefix(v, "MANX_") || strings.HasPrefix(v, "FELIX_") ||
				strings.HasSuffix(v, "_PASSWORD_FILE") {
				continue
			}
			if r, ok := settings.Find(settings.Environment, v); !ok || r.State != settings.Done {
				t.Errorf("%s sets --%s, and the table says %v", v, f.Name, r)
			}
		}
	})
}
