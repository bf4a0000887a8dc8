package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
)

// hostLocal is the folder with the addresses that the plugin host-local has assigned to pods of Calico.
const hostLocal = "/var/lib/cni/networks/k8s-pod-network"

// upgradeAddresses is calico-ipam -upgrade: Calico moves the addresses of host-local to its own IPAM. Manx does not; it
// fails if there is an address, since it would be assigned a second time.
func upgradeAddresses(folder string, out io.Writer) error {
	entries, err := os.ReadDir(folder)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, e := range entries { // beside the addresses there are locks
		if _, err := netip.ParseAddr(e.Name()); err == nil {
			return fmt.Errorf("%s has addresses of host-local, such as %s, and Manx does not move them to Calico's "+
				"IPAM: run calico-ipam -upgrade of Calico first, or drain the node and remove the folder", folder,
				e.Name())
		}
	}
	_, err = fmt.Fprintln(out, "there are no addresses of host-local: nothing to upgrade")
	return err
}
