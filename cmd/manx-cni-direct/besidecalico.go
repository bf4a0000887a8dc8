package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"k8s.io/client-go/rest"

	"github.com/manxnet/manx/cni/install"
	"github.com/manxnet/manx/controllers/caliconode"
	"github.com/manxnet/manx/datastore/kubernetes"
)

const (
	// calicoPoll is the interval between checks whether calico-node has ended, calicoTimeout bounds one of them.
	calicoPoll, calicoTimeout = 2 * time.Second, 10 * time.Second
	podNamespace              = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"
)

// calicoFinder returns the finder of calico-node for an init container, from the environment variables of manxd. It
// needs the Kubernetes API only if there is one.
func calicoFinder(getenv func(string) string) (caliconode.Finder, error) {
	config := kubernetes.ConfigFromEnv(getenv)
	config.UserAgent = kubernetes.UserAgent("manx-cni-direct", buildVersion)
	var kube *rest.Config
	kube, err := config.REST()
	if err != nil && !errors.Is(err, kubernetes.ErrNoKubernetes) {
		return caliconode.Finder{}, err
	}
	host, _ := os.Hostname()
	own, _ := os.ReadFile(podNamespace)
	return caliconode.NewFinder(cmp.Or(getenv("CALICO_K8S_NODE_REF"), getenv("NODENAME"), host),
		caliconode.Namespaces(cmp.Or(getenv("NAMESPACE"), strings.TrimSpace(string(own)), "kube-system"),
			getenv("MANX_CALICO_NAMESPACES")), kube), nil
}

// besideError refuses the installation of plugins beside an active calico-node.
type besideError struct {
	stay   []string // the plugins
	active string   // the program
}

func (e *besideError) Error() string {
	return fmt.Sprintf("%s: not replaced, and no plugin is installed: calico-node is active on this host (%s), and "+
		"its pods need its plugins. End it, then run `manx-cni install` again; with MANX_BESIDE_CALICO_NODE=true it "+
		"replaces them at once", strings.Join(e.stay, ", "), e.active)
}

// refuseBesideCalicoNode returns a besideError if the installation would replace plugins of another program while the
// BGP daemon of a calico-node runs on this host. It needs no Kubernetes API.
func refuseBesideCalicoNode(ctx context.Context, b install.Binaries) error {
	replaced, err := b.Replaced()
	if err != nil || len(replaced) == 0 {
		return err
	}
	if active := caliconode.BGPDaemon(ctx); active != "" {
		return &besideError{replaced, active}
	}
	return nil
}

// waitForCalicoNode returns when plugins can be installed: their installation replaces none of another program, or no
// calico-node is active on this host. While that is not known it waits, too. It prints each new reason.
func waitForCalicoNode(ctx context.Context, b install.Binaries, f caliconode.Finder, out io.Writer) error {
	said := ""
	for {
		replaced, err := b.Replaced()
		if err != nil || len(replaced) == 0 {
			return err
		}
		limited, cancel := context.WithTimeout(ctx, calicoTimeout)
		active, err := f.Find(limited)
		cancel()
		why := ""
		switch {
		case err != nil:
			why = fmt.Sprintf("it is not known whether a calico-node is active on this host: %v", err)
		case active != "":
			why = fmt.Sprintf("calico-node is active on this host (%s), and its pods need its plugins. %s", active,
				caliconode.Remedy(f.Node))
		default:
			return nil
		}
		if why != said {
			said = why
			fmt.Fprintf(out, "%s stay: %s\n", strings.Join(replaced, ", "), why)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(calicoPoll):
		}
	}
}
