package explain

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/manxnet/manx/datastore/model"
)

// serviceName reads "svc/NAMESPACE/NAME", "service/NAMESPACE/NAME" or the DNS name "NAME.NAMESPACE.svc", which the
// cluster's domain may follow.
func serviceName(text string) (namespace, name string, ok bool) {
	kind, rest, _ := strings.Cut(text, "/")
	switch strings.ToLower(kind) {
	case "svc", "service", "services":
		if namespace, name, ok = strings.Cut(rest, "/"); !ok {
			namespace, name = "default", rest
		}
		return namespace, name, name != ""
	}
	parts := strings.Split(strings.TrimSuffix(text, "."), ".")
	if len(parts) < 3 || parts[2] != "svc" || strings.Contains(text, "/") {
		return "", "", false
	}
	return parts[1], parts[0], parts[0] != "" && parts[1] != ""
}

// backend is an endpoint of a service, with the port of the endpoint.
type backend struct {
	address netip.Addr
	flow    Flow
}

// backends returns the ready endpoints of a service for a flow to the service, in order.
func backends(r model.Reader, namespace, name string, flow Flow) ([]backend, error) {
	title := fmt.Sprintf("service %s/%s", namespace, name)
	portName, translated := servicePort(r, namespace, name, flow)
	service := model.Get[model.Service](r, model.Key{Kind: model.KindService, Namespace: namespace, Name: name})
	if service != nil && service.Spec.ClusterIP != model.ClusterIPNone && flow.Port != 0 && !translated {
		return nil, fmt.Errorf("%s has no port %s", title, flow)
	}
	var found []backend
	known, ports := 0, []string{}
	for k, s := range model.All[model.EndpointSlice](r, model.KindEndpointSlice) {
		if k.Namespace != namespace || s.Labels[model.LabelServiceName] != name {
			continue
		}
		known++
		to, ok := slicePort(s, flow, portName, translated)
		for _, p := range s.Ports {
			if p.Port != nil {
				ports = append(ports, fmt.Sprintf("%s/%d", strings.ToLower(protocolOf(p.Protocol)), *p.Port))
			}
		}
		for _, e := range s.Endpoints {
			for _, a := range addresses(e.Addresses) {
				if ok && e.Conditions.Stays() {
					found = append(found, backend{a, to})
				}
			}
		}
	}
	slices.Sort(ports)
	ports = slices.Compact(ports)
	slices.SortFunc(found, func(a, b backend) int { return a.address.Compare(b.address) })
	switch {
	case known == 0:
		return nil, fmt.Errorf("there is no EndpointSlice of %s: Services are known with the Kubernetes API, or from "+
			"files with EndpointSlices", title)
	case len(found) == 0 && flow.Port != 0 && !slices.Contains(ports, flow.String()) && !translated:
		return nil, fmt.Errorf("%s has no endpoint with %s: the ports of its endpoints are %s", title, flow,
			strings.Join(ports, ", "))
	case len(found) == 0:
		return nil, fmt.Errorf("%s has no ready endpoint for %s", title, flow)
	}
	return found, nil
}

func protocolOf(p *string) string {
	if p == nil || *p == "" {
		return "TCP"
	}
	return *p
}

// servicePort returns the name of the service's port of a flow; ok is false if the Service is not known.
func servicePort(r model.Reader, namespace, name string, flow Flow) (port string, ok bool) {
	s := model.Get[model.Service](r, model.Key{Kind: model.KindService, Namespace: namespace, Name: name})
	if s == nil {
		return "", false
	}
	for _, p := range s.Spec.Ports {
		if p.Port == int32(flow.Port) && strings.EqualFold(protocolOf(&p.Protocol), ProtocolName(flow.Protocol)) {
			return p.Name, true
		}
	}
	return "", false
}

// slicePort returns the flow to the endpoints of a slice: by the name of the service's port, else with the port as it
// was given, which has to be one of the endpoints'.
func slicePort(s *model.EndpointSlice, flow Flow, name string, byName bool) (Flow, bool) {
	if !hasPorts(flow.Protocol) || flow.Port == 0 {
		return flow, true
	}
	for _, p := range s.Ports {
		if !strings.EqualFold(protocolOf(p.Protocol), ProtocolName(flow.Protocol)) {
			continue
		}
		is := ""
		if p.Name != nil {
			is = *p.Name
		}
		switch {
		case p.Port == nil && !byName: // every port
			return flow, true
		case p.Port != nil && (byName && is == name || !byName && *p.Port == int32(flow.Port)):
			flow.Port = uint16(*p.Port)
			return flow, true
		}
	}
	return flow, false
}

// explainService explains the packets to each endpoint of a service, and returns the answer about the first one that
// policy denies, else about the first one.
func explainService(w World, q Question, namespace, name string) (*Answer, error) {
	source, err := findEnd(w.Objects, q.Source)
	if err != nil {
		return nil, fmt.Errorf("source: %w", err)
	}
	ends, err := backends(w.Objects, namespace, name, q.Flow)
	if err != nil {
		return nil, fmt.Errorf("destination: %w", err)
	}
	if other := slices.DeleteFunc(slices.Clone(ends), func(b backend) bool {
		return !slices.ContainsFunc(source.addresses, func(a netip.Addr) bool { return a.Is4() == b.address.Is4() })
	}); len(other) > 0 {
		ends = other // those of the source's families
	}
	family := slices.DeleteFunc(slices.Clone(ends), func(b backend) bool { return b.address.Is6() != q.IPv6 })
	if len(family) > 0 {
		ends = family
	}
	var chosen *Answer
	allowed := 0
	for _, b := range ends {
		a, err := Explain(w, Question{Source: q.Source, Destination: b.address.String(), Flow: b.flow, IPv6: q.IPv6})
		if err != nil {
			return nil, err
		}
		if a.Allowed {
			allowed++
		}
		if chosen == nil || chosen.Allowed && !a.Allowed {
			chosen = a
		}
	}
	chosen.Notes = append([]string{fmt.Sprintf("ready endpoints of service %s/%s for %s: %d; policy allows %d of "+
		"them, and this is about %s", namespace, name, q.Flow, len(ends), allowed, chosen.Destination.Address)},
		chosen.Notes...)
	return chosen, nil
}
