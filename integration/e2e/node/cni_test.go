package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/manxnet/manx/datastore/etcd"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/integration/e2e/world"
	"github.com/manxnet/manx/integration/lab"
)

// TestPluginAndDaemon kills and starts manxd while containers start and end, as in an update. Each ADD succeeds, with
// and without manxd; no address is assigned twice; and nothing is left after all DELs.
func TestPluginAndDaemon(t *testing.T) {
	l := world.NewLab(t, lab.Spec{Name: world.LabName("c"), PlainRouters: true, Nodes: []lab.NodeSpec{{Name: "n1"},
		{Name: "n2"}}})
	datastore, n := l.Nodes[0], l.Nodes[1]
	must(t, datastore.StartManxd(append(datastore.EmbedDatastore(), "--no-default-pools")...))
	conf, bin := filepath.Join(n.Dir, "net.d"), filepath.Join(n.Dir, "bin")
	must(t, errors.Join(os.Mkdir(conf, 0o755), os.Mkdir(bin, 0o755)))
	must(t, n.StartManxd(append(lab.UseDatastore(datastore), "--no-default-pools", "--cni-conf-dir="+conf)...))
	must(t, errors.Join(datastore.Ready(limit), n.Ready(limit)))
	must(t, n.Apply(`
apiVersion: projectcalico.org/v3
kind: IPPool
metadata: {name: four}
spec: {cidr: 10.244.0.0/16}`))
	conflist := filepath.Join(conf, "10-calico.conflist")
	eventually(t, func() error {
		text, err := os.ReadFile(conflist)
		if err == nil && (!json.Valid(text) || !strings.Contains(string(text), `"nodename": "n2"`)) {
			err = fmt.Errorf("the conflist is %s", text)
		}
		return err
	})
	plugin := filepath.Join(l.Spec.Bin, "manx-cni")
	for range 2 {
		_, err := n.Run(plugin, "install", "--to="+bin)
		must(t, err)
	}
	for _, name := range []string{"calico", "calico-ipam", "manx-cni", "manx-cni-direct"} {
		if info, err := os.Stat(filepath.Join(bin, name)); err != nil || info.Mode() != 0o755 {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
	first, err := n.AddPod("first")
	must(t, err)
	must(t, first.Delete())
	socket := filepath.Join(filepath.Dir(n.Socket()), "cni.sock")
	if info, err := os.Stat(socket); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%s: %v, %v", socket, info, err)
	}

	const many = 50
	pods, errs := make([]*lab.Pod, many), make([]error, many)
	ended := make(chan error, 1)
	go func() {
		var err error
		for range 3 {
			time.Sleep(150 * time.Millisecond) // containers come and go with the daemon,
			err = errors.Join(err, n.Manxd().Signal(syscall.SIGKILL))
			<-n.Manxd().Done()
			time.Sleep(100 * time.Millisecond) // without it,
			err = errors.Join(err, n.StartManxd())
			time.Sleep(300 * time.Millisecond) // and while it starts
		}
		ended <- err
	}()
	world.Parallel(many, func(i int) { pods[i], errs[i] = n.AddPod(fmt.Sprintf("many%d", i)) })
	must(t, errors.Join(errs...))
	must(t, <-ended)
	owner := map[netip.Addr]string{}
	for _, p := range pods {
		if other := owner[p.IP4()]; other != "" {
			t.Errorf("%s and %s both have %s", p.Name, other, p.IP4())
		}
		owner[p.IP4()] = p.Name
	}
	must(t, n.Ready(limit))
	must(t, lab.Eventually(limit, func() error { return lab.Ping(pods[0].Namespace, pods[many-1].IP4()) }))

	// DEL also works without a daemon, even for an unknown container.
	must(t, n.Manxd().Signal(syscall.SIGKILL))
	<-n.Manxd().Done()
	world.Parallel(many/2, func(i int) { errs[i] = pods[i].Delete() })
	must(t, errors.Join(errs...))
	must(t, n.StartManxd())
	must(t, n.Ready(limit))
	world.Parallel(many, func(i int) { errs[i] = pods[i].Delete() })
	must(t, errors.Join(errs...))
	store, err := etcd.Open(t.Context(), etcd.Config{Endpoints: []string{datastore.EtcdSocket()}}, zap.NewNop())
	must(t, err)
	defer store.Close()
	for _, kind := range []model.Kind{model.KindWorkloadEndpoint, model.KindIPAMHandle} {
		if left, _, err := store.List(t.Context(), kind, ""); err != nil || len(left) > 0 {
			t.Errorf("%d of kind %s are left, %v", len(left), kind, err)
		}
	}
	blocks, _, err := store.List(t.Context(), model.KindIPAMBlock, "")
	must(t, err)
	for _, o := range blocks {
		if b := o.Value.(*model.Block); len(b.Unallocated) != len(b.Allocations) {
			t.Errorf("block %s: %d addresses are left", o.Key.Name, len(b.Allocations)-len(b.Unallocated))
		}
	}
	must(t, n.Manxd().Stop(limit))
	_, err = n.Run(plugin, "uninstall", "--to="+bin, "--conf-dir="+conf)
	must(t, err)
	for _, dir := range []string{conf, bin} {
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Errorf("left in %s: %v, %v", dir, left, err)
		}
	}
}
