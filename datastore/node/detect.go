package node

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
)

// Candidate is an address of the host, with the reason why it became the node's address or not.
type Candidate struct {
	Family    Family
	Address   netip.Prefix
	Interface string
	Chosen    bool
	Reason    string
	Method    string // the method of the decision
}

// choose selects among the addresses of one family, without I/O. wanted is the address that can-reach or
// kubernetes-internal-ip found; other methods ignore it.
//
// Interfaces are evaluated from the highest index down, as in calico/node, and each one's addresses in the kernel's
// order. Every address becomes a candidate. The error explains why none was selected.
func choose(m method, family Family, interfaces []Interface, wanted netip.Addr) (netip.Prefix, []Candidate, error) {
	interfaces = slices.Clone(interfaces)
	slices.SortStableFunc(interfaces, func(a, b Interface) int { return b.Index - a.Index })
	var chosen *Candidate
	var candidates []Candidate
	for _, i := range interfaces {
		for _, p := range i.Addresses {
			if !family.has(p.Addr()) {
				continue
			}
			c := Candidate{Family: family, Address: p, Interface: i.Name, Method: m.text}
			why, fits := m.evaluate(i.Name, p, wanted)
			switch {
			case fits && chosen == nil:
				c.Chosen, c.Reason = true, "chosen: "+why
				chosen = &c
			case fits:
				c.Reason = fmt.Sprintf("skipped: %s on %s comes first", chosen.Address, chosen.Interface)
			default:
				c.Reason = "skipped: " + why
			}
			candidates = append(candidates, c)
		}
	}
	if chosen == nil {
		return netip.Prefix{}, candidates, fmt.Errorf("%s: none of the host's %d %s addresses fits", m, len(candidates),
			family)
	}
	return chosen.Address, candidates, nil
}

// evaluate reports whether an address may be selected, and why or why not.
func (m method) evaluate(name string, p netip.Prefix, wanted netip.Addr) (why string, fits bool) {
	if !p.Addr().IsGlobalUnicast() {
		return "a loopback, link-local or multicast address cannot be reached by other nodes", false
	}
	exclusion := matching(excluded, name)
	switch m.kind {
	case byInterface:
		if r := matching(m.patterns, name); r != nil {
			return fmt.Sprintf("first address on an interface that matches %s", r), true
		}
		return fmt.Sprintf("interface %s does not match %s", name, m), false
	case byCIDR:
		for _, c := range m.cidrs {
			if c.Contains(p.Addr()) {
				return fmt.Sprintf("first address in %s", c), true
			}
		}
		return "not in " + m.text, false
	case canReach, kubernetesIP:
		if p.Addr() == wanted {
			return fmt.Sprintf("%s gives %s", m, wanted), true
		}
		return fmt.Sprintf("%s gives %s", m, wanted), false
	case skipInterface:
		if r := matching(m.patterns, name); r != nil {
			return fmt.Sprintf("interface %s matches %s of %s", name, r, m), false
		}
	}
	if exclusion != nil {
		return fmt.Sprintf("interfaces that match %s never have the node's address", exclusion), false
	}
	return "first address on the interface with the highest index", true
}

// KubernetesAddress returns the InternalIP of this host's Kubernetes node.
type KubernetesAddress func(ctx context.Context, family Family) (netip.Addr, error)

// detect queries the host for the method's input and selects.
func detect(
	ctx context.Context, m method, family Family, host HostAddresses, kubernetes KubernetesAddress,
) (netip.Prefix, []Candidate, error) {
	interfaces, err := host.Interfaces()
	if err != nil {
		return netip.Prefix{}, nil, err
	}
	var wanted netip.Addr
	switch m.kind {
	case canReach:
		wanted, err = host.SourceFor(ctx, m.destination, family)
	case kubernetesIP:
		if kubernetes == nil {
			err = errors.New("no kubeconfig is available: set KUBECONFIG, or choose another detection method")
		} else {
			wanted, err = kubernetes(ctx, family)
		}
	}
	if err != nil {
		return netip.Prefix{}, nil, fmt.Errorf("%s: %w", m, err)
	}
	chosen, candidates, err := choose(m, family, interfaces, wanted.Unmap())
	if err != nil && wanted.IsValid() {
		err = fmt.Errorf("%s gives %s, which is on no interface of this host", m, wanted)
	}
	return chosen, candidates, err
}
