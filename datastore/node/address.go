package node

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/manxnet/manx/datastore/model"
)

// Values of IP and IP6 other than an address.
const (
	autodetect = "autodetect"
	noAddress  = "none"
)

// decision is the address of one family in its stored form, with the length of its subnet; "" for none.
type decision struct {
	address    string
	candidates []Candidate
	warning    string
}

// decide determines the address of one family from the setting and the Node. An error reports that the requested
// address is not available.
func decide(ctx context.Context, c *Config, f Family, existing string, host HostAddresses) (decision, error) {
	setting, _, variable := c.ip(f)
	switch {
	case setting == noAddress:
		return selected(host, f, netip.Prefix{}, variable+"=none: this node has no "+f.String()+" address")
	case setting == autodetect, setting == "" && existing == "" && f == IPv4:
		return autodetected(ctx, c, f, existing, host)
	case setting == "":
		if existing == "" {
			return selected(host, f, netip.Prefix{}, variable+" is not set: "+f.String()+" addresses are not looked up")
		}
		p, err := parseAddress(existing, f)
		if err != nil {
			return decision{}, fmt.Errorf("the Node's address cannot be used: %w; set %s", err, variable)
		}
		return selected(host, f, p, "the Node has "+existing+" and "+variable+" is not set")
	}
	p, err := parseAddress(setting, f)
	if err != nil {
		return decision{}, fmt.Errorf("%s: %w", variable, err)
	}
	if !strings.Contains(setting, "/") {
		p = withSubnet(host, p)
	}
	return selected(host, f, p, variable+"="+setting)
}

func autodetected(ctx context.Context, c *Config, f Family, existing string, host HostAddresses) (decision, error) {
	setting, method, variable := c.ip(f)
	m, err := parseMethodOf(variable, method)
	if err != nil {
		return decision{}, err
	}
	chosen, candidates, err := detect(ctx, m, f, host, c.Kubernetes)
	switch {
	case err == nil:
		return decision{address: chosen.String(), candidates: candidates}, nil
	case existing != "":
		return decision{address: existing, candidates: candidates,
			warning: fmt.Sprintf("the %s address cannot be detected (%v): the Node keeps %s", f, err, existing)}, nil
	case setting == "":
		return decision{candidates: candidates, warning: fmt.Sprintf("no %s address was found: %v", f, err)}, nil
	}
	return decision{candidates: candidates}, fmt.Errorf("the %s address cannot be detected: %w", f, err)
}

// parseAddress parses "ADDRESS" or "ADDRESS/LENGTH".
func parseAddress(text string, f Family) (netip.Prefix, error) {
	p := model.ParseAddress(text, model.Family(f))
	if a := p.Addr(); !p.IsValid() || a.IsUnspecified() || a.IsLoopback() || a.IsMulticast() {
		return netip.Prefix{}, fmt.Errorf("%q is no %s address of a host: want ADDRESS or ADDRESS/LENGTH", text, f)
	}
	return p, nil
}

// withSubnet sets an address's prefix length to the one that it has on the host.
func withSubnet(host HostAddresses, p netip.Prefix) netip.Prefix {
	interfaces, _ := host.Interfaces()
	for _, i := range interfaces {
		for _, q := range i.Addresses {
			if q.Addr() == p.Addr() {
				return q
			}
		}
	}
	return p
}

// selected selects p, which was not detected, and gives the reason for or against each address of the host.
func selected(host HostAddresses, f Family, p netip.Prefix, why string) (decision, error) {
	interfaces, err := host.Interfaces()
	if err != nil {
		return decision{}, err
	}
	var d decision
	for _, i := range interfaces {
		for _, q := range i.Addresses {
			if !f.has(q.Addr()) {
				continue
			}
			c := Candidate{Family: f, Address: q, Interface: i.Name, Method: "configured", Reason: "skipped: " + why}
			if q.Addr() == p.Addr() {
				c.Chosen, c.Reason = true, "chosen: "+why
			}
			d.candidates = append(d.candidates, c)
		}
	}
	if !p.IsValid() {
		return d, nil
	}
	d.address = p.String()
	if !slices.ContainsFunc(d.candidates, func(c Candidate) bool { return c.Chosen }) {
		d.warning = fmt.Sprintf("%s is on no interface of this host (%s): BGP sessions cannot use it as their source",
			p.Addr(), why)
	}
	return d, nil
}

// nodeInterfaces lists the addresses for the Node: those on interfaces that may have the node's address, of the
// configured families.
func nodeInterfaces(c *Config, interfaces []Interface) []model.NodeInterface {
	var list []model.NodeInterface
	for _, i := range interfaces {
		if matching(excluded, i.Name) != nil {
			continue
		}
		n := model.NodeInterface{Name: i.Name}
		for _, p := range i.Addresses {
			for _, f := range bothFamilies {
				setting, _, _ := c.ip(f)
				if f.has(p.Addr()) && setting != "" && setting != noAddress && p.Addr().IsGlobalUnicast() {
					n.Addresses = append(n.Addresses, p.Addr().String())
				}
			}
		}
		if len(n.Addresses) > 0 {
			list = append(list, n)
		}
	}
	slices.SortFunc(list, func(a, b model.NodeInterface) int { return strings.Compare(a.Name, b.Name) })
	return list
}
