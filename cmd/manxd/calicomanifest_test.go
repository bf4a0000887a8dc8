package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/manxnet/manx/cni/install"
)

// A daemon in a manifest of calico-node gets the variables of its init container; one that names the folder itself, as
// in the manifests of Manx, gets none. Its own variables come first.
func TestVariablesOfTheInitContainer(t *testing.T) {
	dir := t.TempDir()
	template := filepath.Join(dir, "template")
	must(t, os.WriteFile(template, []byte(`{"name":"n"}`), 0o600))
	init := map[string]string{"CNI_NETWORK_CONFIG_FILE": template, "CNI_MTU": "1400", "CNI_CONF_NAME": "5-a.conflist",
		"SECRET": "x"}
	own := map[string]string{"CNI_MTU": "9000"}
	get := func(m map[string]string) func(string) string { return func(name string) string { return m[name] } }
	none, err := leftEnvironment(get(own), dir)
	must(t, err)
	if none("MANX_CNI_CONF_DIR") != "" {
		t.Error("without an init container there is a folder")
	}
	must(t, install.Folder{Dir: dir}.Leave(get(init)))
	getenv, err := leftEnvironment(get(own), dir)
	must(t, err)
	for name, want := range map[string]string{"MANX_CNI_CONF_DIR": dir, "CNI_MTU": "9000",
		"CNI_CONF_NAME": "5-a.conflist", "CNI_NETWORK_CONFIG": `{"name":"n"}`, "CALICO_CNI_SERVICE_ACCOUNT": "calico-cni-plugin", "SECRET": ""} {
		if got := getenv(name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	own["MANX_CNI_CONF_DIR"] = "/elsewhere"
	if getenv, err = leftEnvironment(get(own), dir); err != nil || getenv("CNI_CONF_NAME") != "" {
		t.Errorf("beside a folder of its own: %q, %v", getenv("CNI_CONF_NAME"), err)
	}
	delete(own, "MANX_CNI_CONF_DIR")
	must(t, os.WriteFile(filepath.Join(dir, "manx-cni.environment"), []byte("{"), 0o600))
	if _, err := leftEnvironment(get(own), dir); err == nil || !strings.Contains(err.Error(), "init container") {
		t.Errorf("a broken file: %v", err)
	}
	file := filepath.Join(dir, "manx-cni.environment")
	must(t, os.WriteFile(file, []byte("null"), 0o600))
	if _, err := leftEnvironment(get(own), dir); err != nil {
		t.Errorf("no variables: %v", err)
	}
	must(t, os.WriteFile(file, []byte(`{"CNI_MTU":"1","ETCD_ENDPOINTS":"http://192.0.2.1:2379"}`), 0o600))
	if getenv, err := leftEnvironment(get(nil), dir); err != nil || getenv("CNI_MTU") != "1" ||
		getenv("ETCD_ENDPOINTS") != "" {
		t.Errorf("variables that do not configure the plugin: %q, %v", getenv("ETCD_ENDPOINTS"), err)
	}
	must(t, os.Chown(file, 65534, 65534))
	if _, err := leftEnvironment(get(own), dir); err == nil {
		t.Error("a file of another user is read")
	}
	if _, err := (install.Folder{Dir: dir}).Remove(); err != nil {
		t.Error(err)
	}
	if none, err := leftEnvironment(get(own), dir); err != nil || none("MANX_CNI_CONF_DIR") != "" {
		t.Errorf("the variables stay: %v", err)
	}
}
