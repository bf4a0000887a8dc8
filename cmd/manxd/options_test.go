package main

import (
	"bytes"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/manxnet/manx/daemon/envflag"
	"github.com/manxnet/manx/dataplane/kernel"
)

// Flags, their variables, texts and defaults are a contract with those who run manxd. testdata has the output of the
// commands that show them.
func TestSettingsAsUsersSeeThem(t *testing.T) {
	for file, args := range map[string][]string{"help.txt": {"--help"},
		"explain.txt": {"config", "explain", "--env-file="}} {
		want, err := os.ReadFile("testdata/" + file)
		must(t, err)
		root := rootCommand()
		root.PersistentFlags().VisitAll(func(f *pflag.Flag) {
			variables, _ := envflag.Variables(f)
			for _, env := range variables {
				t.Setenv(env, "") // as if it was not set
			}
		})
		var out bytes.Buffer
		root.SetOut(&out)
		root.SetArgs(args)
		must(t, root.Execute())
		if out.String() == string(want) {
			continue
		}
		have := strings.Split(out.String(), "\n")
		for _, line := range strings.Split(string(want), "\n") {
			if !slices.Contains(have, line) {
				t.Errorf("%s: missing or in another order: %q", file, line)
			}
		}
		t.Errorf("manxd %s prints something else than testdata/%s", strings.Join(args, " "), file)
	}
}

// The settings that the control API shows have no passwords, wherever they come from.
func TestSettingsWithoutPasswords(t *testing.T) {
	fs := pflag.NewFlagSet("manxd", pflag.ContinueOnError)
	(&options{}).flags(fs)
	if err := fs.Parse([]string{"--etcd-password=hunter2",
		"--etcd-endpoints=http://a:1,https://root:@hunter2',hunter2@b:2",
		"--k8s-api-endpoint=root:hunter2@hunter2@c:6443",
		"--etcd-password-file=/etc/pw"}); err != nil {
		t.Fatal(err)
	}
	used, err := envflag.FromEnvironment(fs, func(name string) string {
		return map[string]string{"NODENAME": "n1", "KUBECONFIG": "https://u:hunter2@c/"}[name]
	})
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for _, s := range settingsOf(fs, used, envFile{}.source) {
		found[s.Name] = s.Value + " by " + s.Source
		if strings.Contains(s.Value, "hunter2") {
			t.Errorf("%+v", s)
		}
	}
	for name, want := range map[string]string{"etcd-password": "(set) by flag",
		"node-name":      "n1 by environment NODENAME",
		"etcd-endpoints": "http://a:1,https://(hidden)@b:2 by flag", "etcd-password-file": "/etc/pw by flag",
		"k8s-api-endpoint": "(hidden)@c:6443 by flag",
		"log-level":        "info by default"} {
		if found[name] != want {
			t.Errorf("%s is %q, want %q", name, found[name], want)
		}
	}
}

// All wrong settings are reported at once.
func TestWrongSettings(t *testing.T) {
	var o options
	fs := pflag.NewFlagSet("manxd", pflag.ContinueOnError)
	o.flags(fs)
	must(t, fs.Parse([]string{"--datastore=paper", "--flow-log=-", "--policy=false", "--gobgp-listen=10.0.0.1:1",
		"--networking=none", "--wireguard-required"}))
	err := o.check()
	for _, want := range []string{"--datastore=paper: want", "--flow-log needs --policy",
		"--wireguard-required: with --networking=none",
		"--gobgp-listen=10.0.0.1:1: want"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("no %q in the error %v", want, err)
		}
	}
}

// Settings of the default IPv6 pool do not count on a host that gets none.
func TestPoolOfAFamilyThatIsOff(t *testing.T) {
	if !kernel.HasIPv6(kernel.DefaultProcSysNet) {
		t.Skip("this kernel has no IPv6")
	}
	for _, off := range []bool{false, true} {
		var o options
		fs := pflag.NewFlagSet("manxd", pflag.ContinueOnError)
		o.flags(fs)
		must(t, fs.Parse([]string{"--ipv6pool-block-size=7"}))
		t.Setenv("FELIX_IPV6SUPPORT", map[bool]string{true: "False"}[off])
		must(t, o.felix.read(os.Environ()))
		if err := o.check(); (err == nil) != off {
			t.Errorf("IPv6 off is %v: %v", off, err)
		}
	}
}

func TestEndpointStatusDir(t *testing.T) {
	for _, x := range []struct{ flag, felix, want string }{
		{"", "", "/var/run/calico/endpoint-status"},
		{"", "/felix", "/felix/endpoint-status"},
		{"/flag", "/felix", "/flag/endpoint-status"},
		{"/flag", "none", "/flag/endpoint-status"},
		{"", "none", ""},
		{"None", "/felix", ""},
	} {
		o := hostOptions{endpointStatusPrefix: x.flag}
		if got := o.endpointStatusDir(x.felix); got != x.want {
			t.Errorf("flag %q, FelixConfiguration %q: %q, want %q", x.flag, x.felix, got, x.want)
		}
	}
}

// A setting of an earlier version is refused with the program that has its work.
func TestBirdSocketNamesTheProgram(t *testing.T) {
	if err := (&birdOptions{}).Check(); err != nil {
		t.Errorf("without the setting: %v", err)
	}
	err := (&birdOptions{socket: "/run/bird.ctl"}).Check()
	if err == nil || !strings.Contains(err.Error(), "manx-birdsock --socket /run/bird.ctl") {
		t.Errorf("with the setting: %v", err)
	}
}
