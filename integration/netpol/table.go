package main

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"

	networkingv1 "k8s.io/api/networking/v1"
)

// format is the one that this program reads.
const format = "netpol-tables/1"

// table is a file of cases.
type table struct {
	Format   string    `json:"format"`
	Topology string    `json:"topology"`
	PodPorts []podPort `json:"podPorts"` // every pod serves exactly these
	Cases    []tcase   `json:"cases"`
}

type podPort struct {
	Port     uint16 `json:"port"`
	Protocol string `json:"protocol"`
	Name     string `json:"name"`
}

// tcase is a case: a cluster without policies to which its steps happen.
type tcase struct {
	ID    string   `json:"id"`
	Tags  []string `json:"tags"`
	Steps []step   `json:"steps"`
}

// step is a change of the cluster, the whole cluster afterwards, and the reachability then.
type step struct {
	Actions    []action                     `json:"actions"`
	Namespaces map[string]map[string]string `json:"namespaces"`
	Pods       []pod                        `json:"pods"`
	Policies   []networkingv1.NetworkPolicy `json:"policies"`
	Expected   []expectation                `json:"expected"`
}

type action struct {
	Kind      string                      `json:"kind"`
	Namespace string                      `json:"namespace"`
	Name      string                      `json:"name"`
	Labels    map[string]string           `json:"labels"`
	IP        netip.Addr                  `json:"ip"`
	Policy    *networkingv1.NetworkPolicy `json:"policy"`
}

type pod struct {
	Namespace string            `json:"namespace"`
	Name      string            `json:"name"`
	Labels    map[string]string `json:"labels"`
	IP        netip.Addr        `json:"ip"`
}

func (p pod) id() string { return p.Namespace + "/" + p.Name }

// expectation holds the verdicts for one port: a row for each source, a column for each destination, as in step.Pods.
type expectation struct {
	Protocol string   `json:"protocol"`
	Port     uint16   `json:"port"`
	Combined []string `json:"combined"`
	Ingress  []string `json:"ingress"`
	Egress   []string `json:"egress"`
}

// Cells of an expectation.
const (
	allowed = '.'
	blocked = 'X'
	itself  = '#' // never probed
)

// load reads a file, compressed or not.
func load(path string) (*table, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	if bytes.HasPrefix(raw, []byte{0x1f, 0x8b}) {
		z, err := gzip.NewReader(bytes.NewReader(raw))
		if err == nil {
			raw, err = io.ReadAll(z)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
	}
	t := &table{}
	if err := json.Unmarshal(raw, t); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if err := t.check(); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return t, nil
}

// check refuses tables whose cells could not all be compared, or that hold nothing.
func (t *table) check() error {
	if t.Format != format {
		return fmt.Errorf("format is %q: want %q", t.Format, format)
	}
	if len(t.Cases) == 0 {
		return errors.New("there is no case")
	}
	for _, c := range t.Cases {
		if len(c.Steps) == 0 {
			return fmt.Errorf("case %s has no step", c.ID)
		}
		for i, s := range c.Steps {
			if err := t.checkStep(&s); err != nil {
				return fmt.Errorf("case %s, step %d: %w", c.ID, i+1, err)
			}
		}
	}
	return nil
}

func (t *table) checkStep(s *step) error {
	for _, p := range s.Pods {
		if !p.IP.IsValid() || p.IP.Is4() != s.Pods[0].IP.Is4() {
			return fmt.Errorf("pod %s has address %q: want one of the family of the other pods", p.id(), p.IP)
		}
	}
	if len(s.Expected) == 0 {
		return errors.New("nothing is expected")
	}
	for _, e := range s.Expected {
		if !slices.ContainsFunc(t.PodPorts, func(p podPort) bool {
			return p.Port == e.Port &&
				p.Protocol == e.Protocol
		}) {
			return fmt.Errorf("%s/%d is expected, but no pod serves it", e.Protocol, e.Port)
		}
		for name, m := range map[string][]string{"combined": e.Combined, "ingress": e.Ingress, "egress": e.Egress} {
			if len(m) != len(s.Pods) {
				return fmt.Errorf("%s/%d %s: %d rows for %d pods", e.Protocol, e.Port, name, len(m), len(s.Pods))
			}
			for _, row := range m {
				if len(row) != len(s.Pods) {
					return fmt.Errorf("%s/%d %s: row %q for %d pods", e.Protocol, e.Port, name, row, len(s.Pods))
				}
			}
		}
	}
	return nil
}

// family of the addresses: 4 or 6.
func (t *table) family() int {
	for _, p := range t.Cases[0].Steps[0].Pods {
		if p.IP.Is6() {
			return 6
		}
	}
	return 4
}

// cells that can be probed.
func (s *step) cells() int {
	n := len(s.Pods)
	return len(s.Expected) * n * (n - 1)
}
