package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/spf13/pflag"
)

// What a parameter of Felix and a flag say, the flag decides, then the environment, then Felix's file; "config explain"
// names the source.
func TestParametersOfFelixAndFlags(t *testing.T) {
	path := filepath.Join(t.TempDir(), "felix.cfg")
	must(t, os.WriteFile(path, []byte("[global]\nInterfacePrefix = tap\nLogPrefix = file\n"+
		"DefaultEndpointToHostAction = RETURN\nEndpointStatusPathPrefix = /file\n"), 0o600))
	t.Setenv("MANX_FELIX_CONFIG_FILE", path)
	t.Setenv("FELIX_ENDPOINTSTATUSPATHPREFIX", "/env")
	t.Setenv("FELIX_LOGPREFIX", "env")
	var o options
	fs := pflag.NewFlagSet("manxd", pflag.ContinueOnError)
	o.flags(fs)
	must(t, fs.Parse([]string{"--endpoint-to-host-action=Accept"}))
	list, err := o.fromEnvironment(fs, envFile{})
	must(t, err)
	want := map[string]string{
		"interface-prefix":            "tap by InterfacePrefix in " + path,
		"endpoint-to-host-action":     "Accept by flag",
		"endpoint-status-path-prefix": "/env by environment FELIX_ENDPOINTSTATUSPATHPREFIX",
	}
	for _, s := range list {
		if w := want[s.Name]; w != "" && s.Value+" by "+s.Source != w {
			t.Errorf("%s is %s by %s, want %s", s.Name, s.Value, s.Source, w)
		}
	}
	f := o.localSettings().Spec
	if f.InterfacePrefix != "tap" || f.DefaultEndpointToHostAction != "Accept" || f.LogPrefix != "env" ||
		f.EndpointStatusPathPrefix != "/env" {
		t.Errorf("settings of this host: %s %s %s %s", f.InterfacePrefix, f.DefaultEndpointToHostAction, f.LogPrefix,
			f.EndpointStatusPathPrefix)
	}
}

// A file that another user can write could switch policy off; one that cannot be read must not count as empty.
func TestFelixFileOfAnotherUser(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can give a file away")
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "felix.cfg")
	must(t, os.WriteFile(path, []byte("InterfacePrefix = tap\n"), 0o644))
	o := felixOptions{file: path}
	must(t, o.read(nil))
	must(t, os.Chown(path, 65534, 65534))
	if err := o.read(nil); err == nil {
		t.Error("a file of user 65534 is read")
	}
	o.file = filepath.Join(dir, "none", "felix.cfg")
	must(t, o.read(nil))
}
