// Package hostservers finds the addresses of the servers that this host needs: those of its datastore and of the
// Kubernetes API, and its name servers.
package hostservers

import (
	"context"
	"net"
	"net/netip"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/manxnet/manx/daemon/deps"
	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/etcd"
	"github.com/manxnet/manx/datastore/ippool"
	"github.com/manxnet/manx/datastore/model"
)

// Servers are the servers of a host, with those behind the Service "kubernetes". No workload gets a route for one of
// them.
type Servers struct {
	configured map[string]string       // what the server of each configured name or address is
	ports      map[string][]uint16     // of the same
	resolved   map[string][]netip.Addr // the addresses of each name, as resolved last
	resolvConf string
	tables     *datastore.Tables
}

// New returns the servers of the settings: the URLs of etcd, separated by commas, and the Kubernetes API.
func New(d deps.Deps, etcdEndpoints string) *Servers {
	s := &Servers{configured: map[string]string{}, ports: map[string][]uint16{}, resolved: map[string][]netip.Addr{},
		tables: d.Tables, resolvConf: "/etc/resolv.conf"}
	add := func(at, what string) {
		if u, err := url.Parse(at); err == nil && u.Hostname() != "" {
			s.configured[u.Hostname()] = what
			s.ports[u.Hostname()] = append(s.ports[u.Hostname()], portOf(u))
		}
	}
	for _, endpoint := range etcd.SplitEndpoints(etcdEndpoints) {
		add(endpoint, "the datastore")
	}
	if d.Kube != nil {
		add(d.Kube.Host, "the Kubernetes API")
	}
	return s
}

// portOf returns the port of a URL, which may be that of its scheme.
func portOf(u *url.URL) uint16 {
	if n, err := strconv.ParseUint(u.Port(), 10, 16); err == nil {
		return uint16(n)
	}
	if u.Scheme == "http" {
		return 80
	}
	return 443
}

// serversInterval is the time between two searches, and resolveTimeout that for one name.
const serversInterval, resolveTimeout = time.Minute, 5 * time.Second

// Follow gives the Addresses and the Endpoints to set, now and each minute, until ctx ends.
func (s *Servers) Follow(ctx context.Context, set func(map[netip.Addr]string, []netip.AddrPort)) error {
	tick := time.NewTicker(serversInterval)
	defer tick.Stop()
	first := make(chan struct{})
	go func() {
		defer close(first)
		_, _ = s.tables.WaitInSync(ctx)
	}()
	for {
		for name := range s.configured {
			s.resolve(ctx, name)
		}
		set(s.Addresses(), s.Endpoints())
		select {
		case <-first:
			first = nil
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// resolve resolves a name. After an error its earlier addresses stay.
func (s *Servers) resolve(ctx context.Context, name string) {
	if _, err := netip.ParseAddr(name); err == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, resolveTimeout)
	defer cancel()
	if found, err := net.DefaultResolver.LookupNetIP(ctx, "ip", name); err == nil {
		s.resolved[name] = found
	}
}

// Addresses returns the addresses as far as they are known. Those that the host was not configured with do not count
// inside an IP pool, where a workload may serve them.
func (s *Servers) Addresses() map[netip.Addr]string {
	list := map[netip.Addr]string{}
	snapshot := s.tables.Snapshot()
	pools := ippool.Read(snapshot)
	discovered := func(text, what string) {
		if a, err := netip.ParseAddr(text); err == nil && pools.OfAddress(a.Unmap().WithZone("")) == nil {
			list[a.Unmap().WithZone("")] = what
		}
	}
	if slice := kubernetesSlice(snapshot); slice != nil {
		for _, e := range slice.Endpoints {
			for _, text := range e.Addresses {
				discovered(text, "the Kubernetes API")
			}
		}
	}
	text, _ := os.ReadFile(s.resolvConf) // without the file the host uses no name server
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == "nameserver" {
			discovered(f[1], "a name server of this host")
		}
	}
	for name, what := range s.configured {
		for _, a := range s.addressesOf(name) {
			list[a] = what
		}
	}
	return list
}

func kubernetesSlice(s *datastore.Snapshot) *model.EndpointSlice {
	return model.Get[model.EndpointSlice](s, model.Key{Kind: model.KindEndpointSlice, Namespace: "default",
		Name: "kubernetes"})
}

// addressesOf returns those of a configured name or address.
func (s *Servers) addressesOf(name string) (list []netip.Addr) {
	for _, a := range s.resolved[name] {
		list = append(list, a.Unmap().WithZone(""))
	}
	if a, err := netip.ParseAddr(name); err == nil {
		list = append(list, a.Unmap().WithZone(""))
	}
	return list
}

// Endpoints returns where the datastore and the Kubernetes API are served, as far as it is known.
func (s *Servers) Endpoints() (list []netip.AddrPort) {
	for name, ports := range s.ports {
		for _, a := range s.addressesOf(name) {
			for _, p := range ports {
				list = append(list, netip.AddrPortFrom(a, p))
			}
		}
	}
	slice := kubernetesSlice(s.tables.Snapshot())
	if slice == nil {
		return list
	}
	for _, p := range slice.Ports {
		if p.Port == nil || *p.Port < 1 || *p.Port > 65535 {
			continue
		}
		for _, e := range slice.Endpoints {
			for _, text := range e.Addresses {
				if a, err := netip.ParseAddr(text); err == nil {
					list = append(list, netip.AddrPortFrom(a.Unmap().WithZone(""), uint16(*p.Port)))
				}
			}
		}
	}
	return list
}
