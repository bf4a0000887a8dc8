package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"go.uber.org/zap"

	"github.com/manxnet/manx/datastore/connect"
	"github.com/manxnet/manx/datastore/kubernetes"
	"github.com/manxnet/manx/ipam/hostlocal"
)

// upgradeTimeout bounds -upgrade; the kubelet starts the container again.
const upgradeTimeout = 5 * time.Minute

// upgradeAddresses is calico-ipam -upgrade: it moves the addresses of a network, whose folder of host-local is in root,
// to Calico's IPAM. The error names the addresses of no pool: with one, IPAM could assign them a second time.
func upgradeAddresses(root, network string, getenv func(string) string, out io.Writer) error {
	folder := filepath.Join(root, network)
	content, err := hostlocal.Read(folder)
	if err != nil {
		return err
	}
	for _, r := range content.Refused {
		fmt.Fprintf(out, "%s/%s is left alone: %s\n", folder, r.Name, r.Why)
	}
	if len(content.Files) == 0 {
		_, err = fmt.Fprintln(out, "there are no addresses of host-local: nothing to upgrade")
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), upgradeTimeout)
	defer cancel()
	s := connect.FromEnvironment(getenv)
	if s.Type == "" && len(s.Etcd.Endpoints) == 0 {
		s.Type = connect.Kubernetes // as in Calico's plugin
	}
	s.Kube.UserAgent = kubernetes.UserAgent("manx-cni-direct", buildVersion)
	store, err := connect.Open(ctx, s, zap.NewNop())
	if err != nil {
		return err
	}
	defer store.Close() //nolint:errcheck // every write has been answered
	node := cmp.Or(getenv("NODENAME"), getenv("KUBERNETES_NODE_NAME"))
	if node == "" {
		if node, err = os.Hostname(); err != nil {
			return err
		}
	}
	u := hostlocal.Upgrade{Store: store, Folder: folder, Node: node, Network: network, Now: time.Now}
	plan, err := u.Plan(ctx)
	if err != nil {
		return err
	}
	fmt.Fprint(out, plan.Text())
	if _, err := u.Do(ctx, plan, upgradeTimeout); err != nil {
		return err
	}
	var errs []error
	for _, k := range plan.Kept {
		if k.Unprotected {
			errs = append(errs, fmt.Errorf("%s: %s", k.Name, k.Why))
		}
	}
	return errors.Join(errs...)
}
