package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"

	"github.com/manxnet/manx/cmd/manxctl/table"
	"github.com/manxnet/manx/dataplane/policy"
	"github.com/manxnet/manx/dataplane/policy/explain"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/ipam"
)

// endpoint describes the endpoint of a pod, of a workload, or of an address.
func (d *describer) endpoint(ctx context.Context, namespace, name string) (string, error) {
	key, w, err := findEndpoint(d.objects, namespace, name)
	if errors.Is(err, model.ErrNotFound) {
		return d.withoutEndpoint(ctx, namespace, name, err)
	}
	if err != nil {
		return "", err
	}
	var s sections
	s.heading("Endpoint " + workloadName(key, w))
	s.line("Object", "%s", key)
	s.line("Created", "%s", sinceText(d.objects[key]))
	s.line("Node", "%s", orNone(w.Spec.Node))
	s.line("Interface", "%s", w.Spec.InterfaceName)
	s.line("Service account", "%s", w.Spec.ServiceAccountName)
	s.line("Addresses", "%s", orNone(strings.Join(w.Spec.IPNetworks, ", ")))
	if w.Spec.Claim != nil {
		s.line("Claimed", "%s: the pod's annotations have it, and its status does not yet", strings.Join(
			w.Spec.Claim.IPNetworks, ", "))
	}
	d.endpointOnNode(ctx, &s, key, w)
	for _, network := range w.Spec.IPNetworks {
		d.address(&s, network)
	}
	if len(w.Spec.IPNetworks) == 0 {
		d.whyNoAddress(ctx, &s, key, w)
	}
	d.policies(&s, key, w)
	return s.String(), nil
}

// findEndpoint returns the endpoint that a name is for: an address, POD, or NAMESPACE/POD, where POD may be the name of
// the workload or of the object, too. Without a namespace the name has to be unique.
func findEndpoint(objects model.Reader, namespace, name string) (model.Key, *model.WorkloadEndpoint, error) {
	if ns, rest, ok := strings.Cut(name, "/"); ok {
		namespace, name = ns, rest
	}
	addr, notAddress := netip.ParseAddr(name)
	found := map[model.Key]*model.WorkloadEndpoint{}
	var names []string
	for k, w := range model.AllWorkloads(objects) {
		is := (namespace == "" || k.Namespace == namespace) && slices.Contains([]string{w.Spec.Pod, w.Spec.Workload,
			k.Name}, name)
		if notAddress == nil {
			is = hasAddress(w, addr.Unmap())
		}
		if is {
			found[k] = w
			names = append(names, k.Namespace+"/"+k.Name)
		}
	}
	switch len(found) {
	case 1:
		for k, w := range found {
			return k, w, nil
		}
	case 0:
		about := name
		if namespace != "" && notAddress != nil {
			about = namespace + "/" + name
		}
		return model.Key{}, nil, fmt.Errorf("%q: %w: no WorkloadEndpoint is that of such a pod, or has such an address",
			about, model.ErrNotFound)
	}
	slices.Sort(names)
	return model.Key{}, nil, fmt.Errorf("%q is the name of %d endpoints: name one of %s", name, len(names),
		table.OneLine(strings.Join(names, ", ")))
}

func hasAddress(w *model.WorkloadEndpoint, a netip.Addr) bool {
	return slices.ContainsFunc(w.Spec.IPNetworks, func(network string) bool {
		p, err := netip.ParsePrefix(network)
		return err == nil && p.Addr() == a
	})
}

func workloadName(k model.Key, w *model.WorkloadEndpoint) string {
	for _, name := range []string{w.Spec.Pod, w.Spec.Workload} {
		if name != "" {
			return k.Namespace + "/" + name
		}
	}
	return k.Namespace + "/" + k.Name
}

// withoutEndpoint explains why a pod has no endpoint, as far as the Kubernetes API knows, or who has an address.
func (d *describer) withoutEndpoint(ctx context.Context, namespace, name string, none error) (string, error) {
	if a, err := netip.ParseAddr(name); err == nil {
		x, err := addressAmong(d.objects, a.Unmap())
		if err != nil {
			return "", err
		}
		var s sections
		s.heading("Address " + x.Address)
		x.write(&s)
		return s.String(), nil
	}
	if ns, rest, ok := strings.Cut(name, "/"); ok {
		namespace, name = ns, rest
	}
	if d.pods == nil || namespace == "" {
		return "", none
	}
	pod, err := d.pods.Pod(ctx, namespace, name)
	if err != nil || pod == nil {
		return "", errors.Join(none, err)
	}
	var s sections
	s.heading("Pod " + namespace + "/" + name)
	s.line("Phase", "%s", short(pod.Phase))
	s.line("Node", "%s", short(orNone(pod.Node)))
	switch {
	case pod.HostNetwork:
		s.line("Address", "that of its node: it uses the host's network; HostEndpoints have the policies of the host")
	case pod.Node == "":
		s.line("Address", "none: the pod has no node yet: %s", short(dashOr(pod.Unscheduled,
			"nothing has scheduled it")))
	default:
		s.line("Address", "none: the pod has no WorkloadEndpoint")
	}
	d.warnings(ctx, &s, namespace, name)
	return s.String(), nil
}

// endpointOnNode prints the state of the endpoint at its node.
func (d *describer) endpointOnNode(ctx context.Context, s *sections, key model.Key, w *model.WorkloadEndpoint) {
	if w.Spec.Node == "" {
		return
	}
	s.heading("On node " + w.Spec.Node)
	a := d.states.endpoints(ctx, w.Spec.Node)
	if why := whyNone(a); why != "" {
		d.silent = true
		s.line("State", "unknown: %s", why)
		return
	}
	var answer struct {
		Endpoints []struct {
			Namespace string `json:"namespace"`
			Name      string `json:"name"`
			Phase     string `json:"phase"`
			Reason    string `json:"reason"`
			Since     string `json:"since"`
		} `json:"endpoints"`
	}
	if err := lenient(a.Stdout, &answer); err != nil {
		d.silent = true
		s.line("State", "unknown: its answer cannot be read: %s", short(err.Error()))
		return
	}
	for _, e := range answer.Endpoints {
		if e.Namespace == key.Namespace && e.Name == key.Name {
			age := (nodeSession{Since: e.Since}).age(time.Now())
			s.line("State", "%s%s", short(e.Phase), when(age != "", " for "+age))
			s.line("Reason", "%s", short(e.Reason))
			return
		}
	}
	s.line("State", "manxd there does not know the endpoint (yet): see \"manxctl node problems --node %s\"",
		w.Spec.Node)
}

// address prints who has an address of the endpoint, since when, and how full its pool is.
func (d *describer) address(s *sections, network string) {
	p, err := netip.ParsePrefix(network)
	if err != nil {
		return
	}
	s.heading("Address " + p.Addr().String())
	x, err := addressAmong(d.objects, p.Addr())
	if err != nil {
		s.line("State", "%s", err)
		return
	}
	x.Address, x.Endpoint = "", ""
	x.write(s)
	for _, u := range d.usage {
		if u.Name != "" && u.CIDR.Contains(p.Addr()) {
			s.line("Pool's use", "%s", u.Text())
		}
	}
}

// whyNoAddress prints what keeps a pod from an address: an assignment that is under way, the pools, and the pod's
// Events.
func (d *describer) whyNoAddress(ctx context.Context, s *sections, key model.Key, w *model.WorkloadEndpoint) {
	s.heading("Why it has no address")
	if d.pods != nil {
		if pod, err := d.pods.Pod(ctx, key.Namespace, w.Spec.Pod); err == nil && pod != nil {
			s.line("Phase", "%s%s", short(pod.Phase), when(pod.Ended(), ": its addresses were released when it ended"))
			if pod.Ended() {
				return
			}
		}
	}
	for _, b := range model.All[model.Block](d.objects, model.KindIPAMBlock) {
		for a := range ipam.Allocations(b) {
			if a.Attrs["namespace"] == key.Namespace && a.Attrs["pod"] != "" && a.Attrs["pod"] == w.Spec.Pod {
				s.line("Assigned", "%s to handle %s since %s: the pod starts, or ended", a.Address, a.Handle,
					dash(a.Attrs["timestamp"]))
			}
		}
	}
	var labels map[string]string
	if n, ok := d.objects[model.ResourceKey(model.KindNode, w.Spec.Node)]; ok {
		labels = n.Metadata().GetLabels()
	}
	v := serving{asker: ipam.Asker{Node: w.Spec.Node, Use: v3.IPPoolAllowedUseWorkload, NodeLabels: labels,
		NamespaceLabels: namespaceLabels(d.objects, key.Namespace)}}
	served := false
	for _, u := range d.usage {
		pool := model.Get[model.IPPool](d.objects, model.ResourceKey(model.KindIPPool, u.Name))
		if pool == nil {
			continue
		}
		why := v.whyNot(pool, u, d.config.StrictAffinity)
		served = served || why == ""
		s.line("Pool "+u.Name, "%s", dashOr(why, "can serve it: "+u.Text()))
	}
	s.line("No further block", "%s", v.whyNoBlock(d.config))
	if !served {
		s.line("Cause", "no pool serves it, unless its annotations or the CNI configuration name one")
	}
	if d.pods == nil {
		s.line("See", "the Events of the pod (kubectl describe pod), and the log of manxd on the node")
		return
	}
	d.warnings(ctx, s, key.Namespace, w.Spec.Pod)
}

// warnings prints the last Warnings about a pod, among them the errors of its ADDs.
func (d *describer) warnings(ctx context.Context, s *sections, namespace, pod string) {
	list, err := d.pods.PodWarnings(ctx, namespace, pod)
	if err != nil {
		s.line("Events", "not shown: %s", short(err.Error()))
	}
	for _, text := range list {
		s.line("Event", "%s", short(text))
	}
}

// policies prints which policies apply to an endpoint, in the order of evaluation, and since when they exist.
func (d *describer) policies(s *sections, key model.Key, w *model.WorkloadEndpoint) {
	c := explain.Build(d.objects, policy.Config{Budget: policy.DefaultBudget}, w.Spec.Node)
	for _, ingress := range []bool{true, false} {
		direction := policy.DirectionName(ingress)
		s.heading(strings.ToUpper(direction[:1]) + direction[1:] + " policies, in order")
		list := c.PoliciesOf(key, ingress)
		for i, id := range list {
			fmt.Fprintf(s, "  %d. %s\n", i+1, table.OneLine(d.policyText(c, key, id)))
		}
		if len(list) == 0 {
			s.line("None", "nothing is programmed for it while it has no address")
		}
	}
}

func (d *describer) policyText(c *policy.Calculator, key model.Key, id policy.ID) string {
	text := id.String()
	if p, _ := c.Policy(id); p != nil && p.Tier != "" {
		text += fmt.Sprintf(" in tier %s, order %s", p.Tier, explain.Order(p.Order))
		if p.Staged {
			text += ", staged: counted, not enforced"
		}
	}
	if since := sinceText(d.objects[model.Key{Kind: id.Kind, Namespace: id.Namespace, Name: id.Name}]); since != "" {
		text += ", since " + since
	}
	if why := c.WhyIgnored(key, id); why != "" {
		text += " (ignored: " + why + ")"
	}
	return text
}
