package ipamgc

import (
	"cmp"
	"maps"
	"math/big"
	"net/netip"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/ipam"
)

// The metrics of Calico's dashboards, with the names of kube-controllers.
const (
	unknownNode = "unknown_node"
	noAffinity  = "no_affinity"
	unknownPool = "no_ippool"
)

var (
	poolNode = []string{"ippool", "node"}

	descSize     = desc("ipam_ippool_size", "Addresses of the IP pool.", "ippool")
	descReserved = desc("ipam_ippool_reserved",
		"Addresses of the IP pool that IPReservations keep from being assigned.", "ippool")
	descInUse = desc("ipam_allocations_in_use",
		"Addresses that workloads and tunnel devices have.", poolNode...)
	descBorrowed = desc("ipam_allocations_borrowed",
		"Addresses in use by another node than the one that owns their block.", poolNode...)
	descBlocks     = desc("ipam_blocks", "IPAM blocks.", poolNode...)
	descCandidates = desc("ipam_allocations_gc_candidates", "Addresses that look unused.", poolNode...)
	descReclaimed  = desc("ipam_allocations_gc_reclamations",
		"Unused addresses that were released.", poolNode...)
	descPerNode    = desc("ipam_allocations_per_node", "Addresses in use by node.", "node")
	descBorrowers  = desc("ipam_allocations_borrowed_per_node", "Borrowed addresses by node.", "node")
	descNodeBlocks = desc("ipam_blocks_per_node", "IPAM blocks by node.", "node")
	descReasons    = desc("manx_controllers_released_addresses_total",
		"Unused addresses that were released, by reason.", "reason")
	descGiven = desc("manx_controllers_released_blocks_total",
		"Unused blocks that were released, by reason.", "reason")
)

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

// Describe implements prometheus.Collector.
func (r *Releases) Describe(ch chan<- *prometheus.Desc) {
	ch <- descReclaimed
	ch <- descReasons
	ch <- descGiven
}

// Collect implements prometheus.Collector.
func (r *Releases) Collect(ch chan<- prometheus.Metric) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for k, n := range r.addresses {
		ch <- prometheus.MustNewConstMetric(descReclaimed, prometheus.CounterValue, n, k[0], k[1])
	}
	for reason, n := range r.reasons {
		ch <- prometheus.MustNewConstMetric(descReasons, prometheus.CounterValue, n, string(reason))
	}
	for reason, n := range r.blocks {
		ch <- prometheus.MustNewConstMetric(descGiven, prometheus.CounterValue, n, string(reason))
	}
}

// Describe implements prometheus.Collector.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) { DescribeUsage(ch) }

// DescribeUsage describes the series of a running collector.
func DescribeUsage(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descSize, descReserved, descInUse, descBorrowed, descBlocks, descCandidates,
		descPerNode, descBorrowers, descNodeBlocks} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.x == nil {
		return
	}
	inUse, borrowed, blocks, candidates := gauge{}, gauge{}, gauge{}, gauge{}
	perNode, borrowers, nodeBlocks := gauge{}, gauge{}, gauge{}
	for cidr, b := range c.x.blocks {
		pool, owner := c.pools.of(cidr.Addr()), cmp.Or(b.host, noAffinity)
		blocks[[2]string{pool, owner}]++
		nodeBlocks[[2]string{owner}]++
		for _, a := range b.allocations {
			node := cmp.Or(a.node(), unknownNode)
			inUse[[2]string{pool, node}]++
			if a.node() != "" {
				perNode[[2]string{node}]++
			}
			if a.node() != "" && a.node() != b.host {
				borrowed[[2]string{pool, node}]++
				borrowers[[2]string{node}]++
			}
			if !a.suspect.IsZero() {
				candidates[[2]string{pool, node}]++
			}
		}
	}
	inUse.send(ch, descInUse, 2)
	borrowed.send(ch, descBorrowed, 2)
	blocks.send(ch, descBlocks, 2)
	candidates.send(ch, descCandidates, 2)
	perNode.send(ch, descPerNode, 1)
	borrowers.send(ch, descBorrowers, 1)
	nodeBlocks.send(ch, descNodeBlocks, 1)
	c.pools.collect(ch)
}

// gauge has values by one or two labels.
type gauge map[[2]string]float64

func (g gauge) send(ch chan<- prometheus.Metric, d *prometheus.Desc, labels int) {
	for k, v := range g {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, k[:labels]...)
	}
}

// poolIndex has the pools and reservations.
type poolIndex struct {
	pools        map[string]netip.Prefix
	reservations map[string]*v3.IPReservation
}

func (p *poolIndex) put(ch datastore.Change) {
	if p.pools == nil {
		p.pools, p.reservations = map[string]netip.Prefix{}, map[string]*v3.IPReservation{}
	}
	name := ch.Key.Name
	if ch.Key.Kind == model.KindIPReservation {
		delete(p.reservations, name)
		if r := value[v3.IPReservation](ch.New); r != nil {
			p.reservations[name] = r
		}
		return
	}
	delete(p.pools, name)
	if pool := value[model.IPPool](ch.New); pool != nil {
		if cidr, err := netip.ParsePrefix(pool.Spec.CIDR); err == nil {
			p.pools[name] = cidr
		}
	}
}

// of returns the name of the pool that contains an address.
func (p *poolIndex) of(a netip.Addr) string {
	for name, cidr := range p.pools {
		if cidr.Contains(a) {
			return name
		}
	}
	return unknownPool
}

func (p *poolIndex) collect(ch chan<- prometheus.Metric) {
	for name, cidr := range p.pools {
		size := new(big.Int).Lsh(big.NewInt(1), uint(cidr.Addr().BitLen()-cidr.Bits()))
		f, _ := new(big.Float).SetInt(size).Float64()
		ch <- prometheus.MustNewConstMetric(descSize, prometheus.GaugeValue, f, name)
		r, _ := new(big.Float).SetInt(ipam.ReservedIn(cidr, maps.Values(p.reservations))).Float64()
		ch <- prometheus.MustNewConstMetric(descReserved, prometheus.GaugeValue, r, name)
	}
}
