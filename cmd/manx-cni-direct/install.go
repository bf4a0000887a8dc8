package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/cni/install"
)

// Folders of the host, as mounted in a container at Calico's paths.
const (
	mountedBin, mountedSecondBin, mountedConf = "/host/opt/cni/bin", "/host/secondary-bin-dir", "/host/etc/cni/net.d"
	ownBin, ownConf                           = "/opt/cni/bin", "/etc/cni/net.d"
)

const installUsage = `manx-cni install copies the CNI plugins into the folders of the container runtime: manx-cni under the names manx-cni,
calico and calico-ipam, manx-cni-direct, and the plugins of --others if that folder exists. It does not write equal files
again. manxd writes the network configuration (see its --cni-conf-dir) when the node can serve pods.
While the BGP daemon of a calico-node runs on this host, no plugin of another program is replaced: nothing is installed,
and the exit code is 3. MANX_BESIDE_CALICO_NODE=true turns that off.

manx-cni uninstall removes the plugins of manx-cni install and the network configuration of manxd, and restores the
configuration that was there before, with the plugins that other programs have chained in the list since. It keeps
plugins that another program has replaced, and a network configuration that another network has replaced.

Flags, with the environment variables that stand in for them:
`

// installer runs the commands install and uninstall.
func installer(args []string, getenv func(string) string, out io.Writer) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	fs := pflag.NewFlagSet("manx-cni", pflag.ContinueOnError)
	fs.SetOutput(out)
	fs.Usage = func() { fmt.Fprint(out, installUsage, fs.FlagUsages()) }
	to := fs.StringSlice("to", split(getenv("MANX_CNI_BIN_DIR")), "folders for the plugins; empty: "+mountedBin+" and "+
		mountedSecondBin+" where they are mounted, else "+ownBin+" [MANX_CNI_BIN_DIR]")
	conf := fs.String("conf-dir", getenv("MANX_CNI_CONF_DIR"), "folder of network configurations, for "+
		"uninstall; empty: "+
		mountedConf+" if it is mounted, else "+ownConf+" [MANX_CNI_CONF_DIR]")
	from := fs.String("from", filepath.Dir(self), "folder of manx-cni and manx-cni-direct")
	others := fs.String("others", ownBin, "folder of further plugins of this image")
	skip := fs.StringSlice("skip", split(getenv("SKIP_CNI_BINARIES")),
		"names that are not installed [SKIP_CNI_BINARIES]")
	update := fs.Bool("update", boolean(getenv("UPDATE_CNI_BINARIES"), true),
		"replace existing plugins that differ [UPDATE_CNI_BINARIES]")
	wait := fs.Bool("wait-for-calico-node", false, "of install: wait for the end of the calico-node instead, whose "+
		"pod is also searched in the Kubernetes API with the settings of manxd (KUBECONFIG or those of this pod, "+
		"NODENAME, CALICO_K8S_NODE_REF, NAMESPACE, MANX_CALICO_NAMESPACES)")
	away := fs.Bool("remove", false, "of install: uninstall")
	asCalico := fs.Bool("as-calico", false, "of install: be Calico's program install, for a manifest of Calico: leave "+
		"the variables for the network configuration, such as CNI_NETWORK_CONFIG, in --conf-dir, where manxd takes "+
		"them, and without SLEEP=false wait for a signal at the end")
	if err := fs.Parse(args[1:]); err != nil {
		if errors.Is(err, pflag.ErrHelp) {
			return nil
		}
		return err
	}
	if fs.NArg() > 0 {
		return fmt.Errorf("%q: %s takes no arguments", fs.Args(), args[0])
	}
	b := install.Binaries{From: *from, Others: *others, To: folders(*to), Skip: *skip, Keep: !*update}
	if len(b.To) == 1 && b.To[0] == b.Others {
		b.Others = "" // no plugin is installed over itself
	}
	switch command := args[0]; {
	case command == "install" && !*away:
		if !boolean(getenv("MANX_BESIDE_CALICO_NODE"), false) {
			if err := awaitEndOfCalicoNode(context.Background(), b, *wait, getenv, out); err != nil {
				return err
			}
		}
		written, err := b.Install()
		printList(out, "installed", written)
		if err == nil && *asCalico {
			err = asCalicoDoes(folder(*conf, mountedConf, ownConf), getenv, out)
		}
		return err
	case command == "uninstall", command == "install":
		return uninstall(b, folder(*conf, mountedConf, ownConf), out)
	case command == "help", command == "--help", command == "-h":
		fs.Usage()
		return nil
	}
	return fmt.Errorf("%q is no command: want install, uninstall, -t, -v, or none for a call of CNI", args[0])
}

// asCalicoDoes is the rest of Calico's program install.
func asCalicoDoes(conf string, getenv func(string) string, out io.Writer) error {
	if err := (install.Folder{Dir: conf}).Leave(getenv); err != nil {
		return err
	}
	fmt.Fprintln(out, "manxd writes the network configuration when the node can serve pods")
	if boolean(getenv("SLEEP"), true) {
		ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
		defer stop()
		<-ctx.Done()
	}
	return nil
}

// awaitEndOfCalicoNode returns nil if the installation takes no plugin from an active calico-node, after a wait for its
// end if that is wanted.
func awaitEndOfCalicoNode(ctx context.Context, b install.Binaries, wait bool, getenv func(string) string,
	out io.Writer) error {
	if !wait {
		return refuseBesideCalicoNode(ctx, b)
	}
	f, err := calicoFinder(getenv)
	if err != nil {
		return err
	}
	return waitForCalicoNode(ctx, b, f, out)
}

func uninstall(b install.Binaries, conf string, out io.Writer) error {
	did, err := install.Folder{Dir: conf}.Remove()
	for _, what := range did {
		fmt.Fprintln(out, what)
	}
	files, binariesErr := b.Remove()
	printList(out, "removed", files)
	return errors.Join(err, binariesErr)
}

func printList(out io.Writer, what string, list []string) {
	for _, path := range list {
		fmt.Fprintln(out, what, path)
	}
}

func split(list string) (parts []string) {
	for p := range strings.SplitSeq(list, ",") {
		if p = strings.TrimSpace(p); p != "" {
			parts = append(parts, p)
		}
	}
	return parts
}

// boolean parses Calico's booleans.
func boolean(text string, otherwise bool) bool {
	b, err := strconv.ParseBool(text)
	if err != nil {
		return otherwise
	}
	return b
}

// folders returns the given folders, or the host's.
func folders(given []string) []string {
	if len(given) > 0 {
		return given
	}
	if _, err := os.Stat(mountedBin); err == nil {
		list := []string{mountedBin}
		if _, err := os.Stat(mountedSecondBin); err == nil {
			list = append(list, mountedSecondBin)
		}
		return list
	}
	return []string{ownBin}
}

func folder(given, mounted, own string) string {
	if given != "" {
		return given
	}
	if _, err := os.Stat(mounted); err == nil {
		return mounted
	}
	return own
}
