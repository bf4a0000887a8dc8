package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/manxnet/manx/daemon/envflag"
	"github.com/manxnet/manx/datastore/settings"
)

func TestAcceptedSettingsHaveToExist(t *testing.T) {
	o := acceptOptions{"bpfEnabled, wireguardEnabled, CALICO_NETWORKING_BACKEND"} // the last one by an earlier version
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
		"CALICO_NETWORKING_BACKEND none CALICO_NETWORKING_BACKEND in the environment done ",
		"wireguardEnabled false FELIX_WIREGUARDENABLED in the environment done ",
		"CALICO_NETWORKING true CALICO_NETWORKING in the environment done ",
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
