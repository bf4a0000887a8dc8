package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/manxnet/manx/cni/install"
)

// A manifest of calico-node runs with the image of Manx in place of its own. See docs/calico-manifest.md.

// mountedNetworks is where calico-node's manifests mount the folder of network configurations.
const mountedNetworks = "/host/etc/cni/net.d"

// leftEnvironment returns getenv with the variables for the CNI configuration that the init container of calico-node's
// manifest has left in a folder: the container of the daemon has none of them there. A manifest that names the folder
// of the configuration itself, as those of Manx do, gets none of them.
func leftEnvironment(getenv func(string) string, folder string) (func(string) string, error) {
	if getenv("MANX_CNI_CONF_DIR") != "" {
		return getenv, nil
	}
	left, err := install.Folder{Dir: folder}.Left()
	if errors.Is(err, fs.ErrNotExist) {
		return getenv, nil
	}
	if err != nil {
		return nil, fmt.Errorf("variables of the init container: %w", err)
	}
	left["MANX_CNI_CONF_DIR"] = folder
	return func(name string) string {
		if value := getenv(name); value != "" {
			return value
		}
		return left[name]
	}, nil
}

// componentCommand runs the component of Calico that the arguments name: its manifests have these arguments for the
// entry of Calico's image.
func componentCommand() *cobra.Command {
	return &cobra.Command{
		Use: "component", Hidden: true, DisableFlagParsing: true,
		PersistentPreRunE: func(*cobra.Command, []string) error { return nil },
		RunE: func(_ *cobra.Command, args []string) error {
			self, err := os.Executable()
			if err != nil {
				return err
			}
			path := filepath.Join(filepath.Dir(self), "manxctl")
			err = syscall.Exec(path, append([]string{"calico", "component"}, args...), os.Environ())
			return fmt.Errorf("%s cannot be executed: %w", path, err)
		},
	}
}
