package install

import (
	"encoding/json"
	"fmt"

	"github.com/manxnet/manx/datastore/safefile"
)

// leftName is the file with the variables that an init container leaves for the daemon. Runtimes do not read it.
const leftName = "manx-cni.environment"

// leftVariables are the variables of Calico's init container install-cni that configure the plugins.
var leftVariables = []string{"CNI_NETWORK_CONFIG", "CNI_CONF_NAME", "CNI_OLD_CONF_NAME", "CNI_MTU", "CNI_NET_DIR",
	"CALICO_CNI_SERVICE_ACCOUNT", "LOG_LEVEL", "LOG_FILE_PATH"}

// calicoAccount is the service account of the plugins in Calico's manifests.
const calicoAccount = "calico-cni-plugin"

// Leave writes the variables of this environment that configure the plugins, for the daemon of another container that
// has none of them. The network configuration of CNI_NETWORK_CONFIG_FILE becomes that of CNI_NETWORK_CONFIG.
func (f Folder) Leave(getenv func(string) string) error {
	left := map[string]string{"CALICO_CNI_SERVICE_ACCOUNT": calicoAccount}
	for _, name := range leftVariables {
		if value := getenv(name); value != "" {
			left[name] = value
		}
	}
	if path := getenv("CNI_NETWORK_CONFIG_FILE"); path != "" {
		text, err := safefile.Read(path, longestFile)
		if err != nil {
			return fmt.Errorf("CNI_NETWORK_CONFIG_FILE: %w", err)
		}
		left["CNI_NETWORK_CONFIG"] = string(text)
	}
	text, err := json.MarshalIndent(left, "", "  ")
	if err != nil {
		return err
	}
	return safefile.Replace(f.path(leftName), append(text, '\n'), 0o600)
}

// Left returns the variables of Leave, and no others: the file must not change other settings of the daemon. The error
// wraps fs.ErrNotExist if there are none.
func (f Folder) Left() (left map[string]string, err error) {
	text, _, err := safefile.ReadTrusted(f.path(leftName), longestFile)
	if err != nil {
		return nil, err
	}
	var all map[string]string
	if err := json.Unmarshal(text, &all); err != nil {
		return nil, fmt.Errorf("%s: %w", f.path(leftName), err)
	}
	left = map[string]string{}
	for _, name := range leftVariables {
		left[name] = all[name]
	}
	return left, nil
}
