package bench

import (
	"context"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/manxnet/manx/datastore/etcd"
	"github.com/manxnet/manx/integration/e2e/world"
	"github.com/manxnet/manx/integration/lab"
	"github.com/manxnet/manx/integration/namespace"
)

// BenchmarkOverlayDaemons starts manxd, and Felix if MANX_FELIX is the path of calico-felix, on a node of a cluster
// with n other nodes and VXLAN: the time from the start until all routes are there, with the processor time and the
// memory, and then the time from a new node's request to the datastore until there is a route to it. The datastore is
// an etcd beside them. Each starts without the device of the one before.
func BenchmarkOverlayDaemons(b *testing.B) {
	for _, n := range []int{100, 1000, 5000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			s := newSite(b)
			daemons := s.overlayDaemons(b, startEtcd(b, s))
			if err := s.fill(n); err != nil {
				b.Fatal(err)
			}
			have := n
			for _, d := range daemons {
				b.Run(d.name, func(b *testing.B) { have = s.measureOverlayDaemon(b, d, have) })
			}
		})
	}
}

// moreNodes is how many nodes are added in each round.
const moreNodes = 20

// overlayDaemon programs the overlay of a node.
type overlayDaemon struct {
	name  string
	start func() (pid int, stop func(), err error)
}

// overlayDaemons returns the daemons to compare, after manxd has stored its Node and the pool is there.
func (s *site) overlayDaemons(b *testing.B, endpoint string) []overlayDaemon {
	b.Helper()
	args := []string{"--datastore=etcdv3", "--etcd-endpoints=" + endpoint, "--networking=vxlan", "--no-default-pools"}
	start := func() (int, func(), error) {
		err := s.node.StartManxd(args...)
		if err != nil {
			return 0, nil, err
		}
		return s.node.Manxd().PID(), s.node.Manxd().Kill, nil
	}
	if _, stop, err := start(); err != nil {
		b.Fatal(err)
	} else if err := s.node.Ready(world.Limit); err != nil {
		b.Fatal(err)
	} else if err := s.node.Apply("apiVersion: projectcalico.org/v3\nkind: IPPool\nmetadata: {name: pods}\n" +
		"spec: {cidr: 10.64.0.0/10, vxlanMode: Always}\n"); err != nil {
		b.Fatal(err)
	} else if err := lab.Eventually(world.Limit, func() error {
		_, err := s.node.Run("ip", "link", "show", "vxlan.calico", "up")
		return err
	}); err != nil {
		b.Fatal(err)
	} else {
		stop()
	}
	list := []overlayDaemon{{"manxd", start}}
	if felix := os.Getenv("MANX_FELIX"); felix != "" {
		start := func() (int, func(), error) { return s.startFelix(felix, endpoint) }
		list = append(list, overlayDaemon{"felix", start})
	}
	return list
}

// startFelix runs Felix on the node, with as little as it can do beside the overlay and the rules that it always has.
func (s *site) startFelix(path, endpoint string) (pid int, stop func(), err error) {
	cmd := namespace.Command(s.node.Namespace, "env", "DATASTORE_TYPE=etcdv3", "ETCD_ENDPOINTS="+endpoint,
		"FELIX_FELIXHOSTNAME="+s.node.Name, "FELIX_NFTABLESMODE=Enabled", "FELIX_IPV6SUPPORT=false",
		"FELIX_LOGFILEPATH=none", "FELIX_LOGSEVERITYSYS=none", "FELIX_LOGSEVERITYSCREEN=error",
		"FELIX_USAGEREPORTINGENABLED=false", "FELIX_BPFENABLED=false", path)
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	if err := cmd.Start(); err != nil {
		return 0, nil, err
	}
	return cmd.Process.Pid, func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }, nil
}

// fill stores n nodes and their blocks, from node 1 on: the node of the site is node 0.
func (s *site) fill(n int) error {
	store, err := openStore(s)
	if err != nil {
		return err
	}
	defer store.Close()
	for i := 1; i <= n; i++ {
		if err := storeOverlayNode(store, i); err != nil {
			return err
		}
	}
	return nil
}

func storeOverlayNode(store *etcd.Store, i int) error {
	node, block := overlayNode(i)
	if _, err := store.Create(context.Background(), node); err != nil {
		return err
	}
	return createBlockOf(context.Background(), store, node.Key.Name, block)
}

// measureOverlayDaemon starts a daemon b.N times in a cluster of n nodes. It returns the number of nodes at the end.
func (s *site) measureOverlayDaemon(b *testing.B, d overlayDaemon, n int) int {
	b.Helper()
	store, err := openStore(s)
	if err != nil {
		b.Fatal(err)
	}
	defer store.Close()
	var all, work, one, each []time.Duration
	var private float64
	for range b.N {
		_, _ = s.node.Run("ip", "link", "del", "vxlan.calico")
		begin := time.Now()
		pid, stop, err := d.start()
		if err != nil {
			b.Fatal(err)
		}
		if err := lab.Eventually(5*time.Minute, func() error { return s.hasRoutes(n) }); err != nil {
			stop()
			b.Fatal(err)
		}
		all, work = append(all, time.Since(begin)), append(work, cpu(pid))
		awaitIdle(b, pid)
		private = max(private, privateMB(pid))
		took, cost := s.addOverlayNodes(b, store, pid, n)
		one, each = append(one, took...), append(each, cost)
		n += moreNodes
		stop()
	}
	median := func(list []time.Duration) float64 {
		slices.Sort(list)
		return float64(list[len(list)/2].Microseconds()) / 1e3
	}
	b.ReportMetric(median(all), "all-ms")
	b.ReportMetric(median(work), "all-cpu-ms")
	b.ReportMetric(private, "private-MB")
	b.ReportMetric(median(one), "one-ms")
	b.ReportMetric(median(each), "one-cpu-ms")
	b.ReportMetric(0, "ns/op")
	return n
}

// hasRoutes reports whether n routes lead through the VXLAN device.
func (s *site) hasRoutes(n int) error {
	have := 0
	if err := namespace.Inside(s.node.Namespace, func() {
		link, err := netlink.LinkByName("vxlan.calico")
		if err != nil {
			return
		}
		list, _ := netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{LinkIndex: link.Attrs().Index},
			netlink.RT_FILTER_OIF)
		for _, r := range list {
			if r.Gw != nil {
				have++
			}
		}
	}); err != nil {
		return err
	}
	if have < n {
		return fmt.Errorf("%d of %d routes", have, n)
	}
	return nil
}

// addOverlayNodes adds some nodes behind the n-th, one after the other. It returns the time of each until its route was
// there, and the processor time for one.
func (s *site) addOverlayNodes(b *testing.B, store *etcd.Store, pid, n int) (took []time.Duration, cost time.Duration) {
	b.Helper()
	routes := s.watchRoutes(b)
	before := cpu(pid)
	for i := n + 1; i <= n+moreNodes; i++ {
		begin := time.Now()
		if err := storeOverlayNode(store, i); err != nil {
			b.Fatal(err)
		}
		_, block := overlayNode(i)
		awaitRoute(b, routes, block)
		took = append(took, time.Since(begin))
		time.Sleep(200 * time.Millisecond) // one change at a time, with what follows from it
	}
	cost = (cpu(pid) - before) / moreNodes
	return took, cost
}
