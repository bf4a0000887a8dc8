package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"path/filepath"
	"sync"
	"time"

	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/podnet"
	"github.com/manxnet/manx/integration/lab"
	"github.com/manxnet/manx/integration/namespace"
)

// prober is a pod: a namespace that is attached to the node as the CNI plugin does it, servers in it, and a thread
// there that sends probes.
type prober struct {
	ip        netip.Addr
	away      []*lab.Node // that have a route to it
	namespace string
	servers   []io.Closer
	jobs      chan func() // run one after the other in the namespace
}

// pods are the pods of all nodes.
type pods struct {
	prefix string // of the names of namespaces
	nodes  placement
	hosts  []*lab.Node
	ports  []podPort
	have   map[string]*prober // by pod.id
	made   int
	rounds uint16
}

// firstPort is above every port that pods serve. Each round of probes comes from the next one.
const (
	firstPort = 20000
	lastPort  = 60999
)

// sync creates and removes pods, so that exactly those of a cluster exist.
func (ps *pods) sync(want map[string]pod) error {
	for id, have := range ps.have {
		if p, ok := want[id]; !ok || p.IP != have.ip {
			delete(ps.have, id)
			if err := have.remove(); err != nil {
				return fmt.Errorf("pod %s: %w", id, err)
			}
		}
	}
	for id, p := range want {
		if ps.have[id] == nil {
			have, err := ps.add(p)
			if err != nil {
				return fmt.Errorf("pod %s: %w", id, err)
			}
			ps.have[id] = have
		}
	}
	return nil
}

func (ps *pods) add(p pod) (*prober, error) {
	ps.made++
	pr := &prober{ip: p.IP, namespace: fmt.Sprintf("%s-pod%d", ps.prefix, ps.made), jobs: make(chan func())}
	if err := namespace.Add(pr.namespace); err != nil {
		return nil, err
	}
	if err := ps.attach(p, pr); err != nil {
		return nil, err
	}
	ready := make(chan error, 1)
	go func() {
		err := namespace.Inside(pr.namespace, func() {
			var err error
			pr.servers, err = serve(p.IP, ps.ports)
			ready <- err
			for job := range pr.jobs {
				job()
			}
		})
		if err != nil {
			ready <- err
		}
	}()
	return pr, <-ready
}

// remove ends the pod; its interface is removed with its namespace.
func (pr *prober) remove() error {
	pr.stop()
	for _, h := range pr.away {
		if _, err := h.Run("ip", "route", "del", pr.ip.String()); err != nil {
			return err
		}
	}
	return namespace.Remove(pr.namespace)
}

func (pr *prober) stop() {
	for _, s := range pr.servers {
		_ = s.Close()
	}
	close(pr.jobs)
}

func (ps *pods) attach(p pod, pr *prober) (err error) {
	everywhere := netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	if p.IP.Is6() {
		everywhere = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	}
	home := ps.hosts[ps.nodes.index(p.Namespace)]
	inErr := namespace.Inside(home.Namespace, func() {
		_, err = podnet.Attach(podnet.Pod{
			Netns: filepath.Join("/run/netns", pr.namespace), IfName: "eth0", HostIf: interfaceOf(p), MTU: 1500,
			Addresses: []netip.Addr{p.IP}, Routes: []netip.Prefix{everywhere},
			HostRoute: podnet.Route{Protocol: int(kernel.ProtocolBoot), Metric: 1024},
		}, podnet.Options{})
	})
	if err := errors.Join(inErr, err); err != nil {
		return err
	}
	via := home.IP4
	if p.IP.Is6() {
		via = home.IP6
	}
	for _, h := range ps.hosts {
		if h == home {
			continue
		}
		if _, err := h.Run("ip", "route", "add", p.IP.String(), "via", via.String()); err != nil {
			return err
		}
		pr.away = append(pr.away, h)
	}
	return nil
}

func (ps *pods) close() {
	for _, p := range ps.have {
		p.stop()
	}
	ps.have = nil
}

// probe sends the requested probes, from all sources at once, and fills in the results.
func (ps *pods) probe(ctx context.Context, s *step, got reachability, cells []cell, wait time.Duration) error {
	port := firstPort + ps.rounds%(lastPort-firstPort)
	ps.rounds++
	bySource := map[int][]cell{}
	for _, c := range cells {
		bySource[c.from] = append(bySource[c.from], c)
	}
	var wg sync.WaitGroup
	errs := make([]error, len(s.Pods))
	for from, cells := range bySource {
		pr := ps.have[s.Pods[from].id()]
		targets := make([]target, len(cells))
		for i, c := range cells {
			e := s.Expected[c.expectation]
			targets[i] = target{e.Protocol, netip.AddrPortFrom(s.Pods[c.to].IP, e.Port)}
		}
		wg.Add(1)
		pr.jobs <- func() {
			defer wg.Done()
			reached, err := probe(pr.ip, port, targets, wait)
			errs[from] = err
			for i := range reached {
				c := cells[i]
				got[c.expectation][c.from][c.to] = reached[i]
			}
		}
	}
	wg.Wait()
	return errors.Join(append(errs, ctx.Err())...)
}

// all cells of a step that can be probed.
func (s *step) all() []cell {
	var list []cell
	for x := range s.Expected {
		for i := range s.Pods {
			for j := range s.Pods {
				if i != j {
					list = append(list, cell{x, i, j})
				}
			}
		}
	}
	return list
}
