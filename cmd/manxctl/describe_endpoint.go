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

	"github.com/manxnet/manx/dataplane/policy"
	"github.com/manxnet/manx/dataplane/policy/explain"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/datastore/table"
	"github.com/manxnet/manx/ipam"
)

// endpointDescription is an element of "describe endpoint -o json". The fields from Object to Interface are empty for a
// pod without a WorkloadEndpoint, and all but Assignments for an address that no endpoint has.
type endpointDescription struct {
	Pod            string          `json:"pod,omitempty"`    // NAMESPACE/NAME, of the endpoint if it is not that of a pod
	Object         string          `json:"object,omitempty"` // the WorkloadEndpoint
	Created        string          `json:"created,omitempty"`
	Node           string          `json:"node,omitempty"`
	Interface      string          `json:"interface,omitempty"`
	ServiceAccount string          `json:"serviceAccount,omitempty"`
	Addresses      []string        `json:"addresses"`
	Claimed        []string        `json:"claimed,omitempty"`
	State          *endpointState  `json:"state,omitempty"`
	Assignments    []assignment    `json:"assignments"` // what IPAM has about the addresses
	NoAddress      *noAddress      `json:"noAddress,omitempty"`
	Ingress        []appliedPolicy `json:"ingressPolicies"` // in the order of evaluation
	Egress         []appliedPolicy `json:"egressPolicies"`
}

// endpointState is the state of an endpoint at its node. Without a phase Unknown has the reason.
type endpointState struct {
	Phase   string `json:"phase,omitempty"`
	Reason  string `json:"reason,omitempty"`
	Since   string `json:"since,omitempty"`
	Unknown string `json:"unknown,omitempty"`
}

// assignment is an address of an endpoint, and how full its pool is.
type assignment struct {
	addressState
	PoolUse *poolState `json:"poolUse,omitempty"`
	Unknown string     `json:"unknown,omitempty"` // why IPAM has nothing about it

	use string
}

// noAddress is why a pod has no address.
type noAddress struct {
	PodPhase string `json:"podPhase,omitempty"`
	Ended    bool   `json:"ended"` // then its addresses were released
	// Assigned are addresses that IPAM has for the pod: it starts, or ended.
	Assigned       []addressState `json:"assigned"`
	Pools          []poolChoice   `json:"pools"`
	NoFurtherBlock string         `json:"noFurtherBlock,omitempty"`
	Cause          string         `json:"cause,omitempty"`
	Events         []string       `json:"events"` // the last Warnings about the pod
	NoEvents       string         `json:"noEvents,omitempty"`

	see string
}

// poolChoice is whether a pool gives a pod or a node addresses.
type poolChoice struct {
	poolState
	Serves bool   `json:"serves"`
	Reason string `json:"reason,omitempty"` // why not

	use string
}

// appliedPolicy is a policy that applies to an endpoint.
type appliedPolicy struct {
	Policy  string `json:"policy"` // KIND/NAMESPACE/NAME
	Tier    string `json:"tier,omitempty"`
	Order   string `json:"order,omitempty"`
	Staged  bool   `json:"staged"`
	Since   string `json:"since,omitempty"`
	Ignored string `json:"ignored,omitempty"` // why it has no effect
}

// endpoint describes the endpoint of a pod, of a workload, or of an address.
func (d *describer) endpoint(ctx context.Context, namespace, name string) (*endpointDescription, error) {
	key, w, err := findEndpoint(d.objects, namespace, name)
	if errors.Is(err, model.ErrNotFound) {
		return d.withoutEndpoint(ctx, namespace, name, err)
	}
	if err != nil {
		return nil, err
	}
	x := &endpointDescription{Pod: workloadName(key, w), Object: key.String(), Created: sinceText(d.objects[key]),
		Node: w.Spec.Node, Interface: w.Spec.InterfaceName, ServiceAccount: w.Spec.ServiceAccountName,
		Addresses: slices.Clone(w.Spec.IPNetworks), Assignments: []assignment{}}
	if w.Spec.Claim != nil {
		x.Claimed = w.Spec.Claim.IPNetworks
	}
	if w.Spec.Node != "" {
		x.State = d.endpointOnNode(ctx, key, w)
	}
	for _, p := range model.Networks(w.Spec.IPNetworks) {
		x.Assignments = append(x.Assignments, d.assignment(p.Addr()))
	}
	if len(w.Spec.IPNetworks) == 0 {
		x.Addresses, x.NoAddress = []string{}, d.whyNoAddress(ctx, key, w)
	}
	c := explain.Build(d.objects, policy.Config{Budget: policy.DefaultBudget}, w.Spec.Node)
	x.Ingress, x.Egress = d.policies(c, key, true), d.policies(c, key, false)
	return x, nil
}

func (x *endpointDescription) write(s *sections) error {
	switch {
	case x.Object == "" && x.NoAddress == nil:
		for _, a := range x.Assignments {
			s.heading("Address " + a.Address)
			a.write(s)
		}
		return nil
	case x.Object == "":
		s.heading("Pod " + x.Pod)
		s.line("Phase", "%s", x.NoAddress.PodPhase)
		s.line("Node", "%s", orNone(x.Node))
		s.line("Address", "%s", x.NoAddress.Cause)
		x.NoAddress.writeEvents(s)
		return nil
	}
	s.heading("Endpoint " + x.Pod)
	s.line("Object", "%s", x.Object)
	s.line("Created", "%s", x.Created)
	s.line("Node", "%s", orNone(x.Node))
	s.line("Interface", "%s", x.Interface)
	s.line("Service account", "%s", x.ServiceAccount)
	s.line("Addresses", "%s", orNone(strings.Join(x.Addresses, ", ")))
	if len(x.Claimed) > 0 {
		s.line("Claimed", "%s: the pod's annotations have it, and its status does not yet", strings.Join(x.Claimed,
			", "))
	}
	if x.State != nil {
		s.heading("On node " + x.Node)
		x.State.write(s)
	}
	for _, a := range x.Assignments {
		s.heading("Address " + a.Address)
		a.write(s)
	}
	if x.NoAddress != nil {
		s.heading("Why it has no address")
		x.NoAddress.write(s)
	}
	writePolicies(s, "Ingress", x.Ingress)
	writePolicies(s, "Egress", x.Egress)
	return nil
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
	for k, w := range model.All[model.WorkloadEndpoint](objects, model.KindWorkloadEndpoint) {
		is := (namespace == "" || k.Namespace == namespace) && slices.Contains([]string{w.Spec.Pod, w.Spec.Workload,
			k.Name}, name)
		if notAddress == nil {
			is = slices.ContainsFunc(model.Networks(w.Spec.IPNetworks), func(p netip.Prefix) bool {
				return p.Addr() == addr.Unmap()
			})
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

func workloadName(k model.Key, w *model.WorkloadEndpoint) string {
	for _, name := range []string{w.Spec.Pod, w.Spec.Workload} {
		if name != "" {
			return k.Namespace + "/" + name
		}
	}
	return k.Namespace + "/" + k.Name
}

// withoutEndpoint explains why a pod has no endpoint, as far as the Kubernetes API knows, or who has an address.
func (d *describer) withoutEndpoint(
	ctx context.Context, namespace, name string, none error,
) (*endpointDescription, error) {
	x := &endpointDescription{Addresses: []string{}, Assignments: []assignment{}, Ingress: []appliedPolicy{},
		Egress: []appliedPolicy{}}
	if a, err := netip.ParseAddr(name); err == nil {
		state, err := addressAmong(d.objects, a.Unmap())
		x.Assignments = append(x.Assignments, assignment{addressState: state})
		return x, err
	}
	if ns, rest, ok := strings.Cut(name, "/"); ok {
		namespace, name = ns, rest
	}
	if d.pods == nil || namespace == "" {
		return nil, none
	}
	pod, err := d.pods.Pod(ctx, namespace, name)
	if err != nil || pod == nil {
		return nil, errors.Join(none, err)
	}
	x.Pod, x.Node = namespace+"/"+name, short(pod.Node)
	why := newNoAddress(pod.Phase, pod.Ended())
	switch {
	case pod.HostNetwork:
		why.Cause = "that of its node: it uses the host's network; HostEndpoints have the policies of the host"
	case pod.Node == "":
		why.Cause = "none: the pod has no node yet: " + short(dashOr(pod.Unscheduled, "nothing has scheduled it"))
	default:
		why.Cause = "none: the pod has no WorkloadEndpoint"
	}
	d.warnings(ctx, why, namespace, name)
	x.NoAddress = why
	return x, nil
}

func newNoAddress(phase string, ended bool) *noAddress {
	return &noAddress{PodPhase: short(phase), Ended: ended, Assigned: []addressState{}, Pools: []poolChoice{},
		Events: []string{}}
}

// endpointOnNode returns the state of the endpoint at its node.
func (d *describer) endpointOnNode(ctx context.Context, key model.Key, w *model.WorkloadEndpoint) *endpointState {
	a := d.states.endpoints(ctx, w.Spec.Node)
	if why := whyNone(a); why != "" {
		d.silent = true
		return &endpointState{Unknown: why}
	}
	var answer struct {
		Endpoints []struct {
			Namespace string `json:"namespace"`
			Name      string `json:"name"`
			endpointState
		} `json:"endpoints"`
	}
	if err := lenient(a.Stdout, &answer); err != nil {
		d.silent = true
		return &endpointState{Unknown: "its answer cannot be read: " + short(err.Error())}
	}
	for _, e := range answer.Endpoints {
		if e.Namespace == key.Namespace && e.Name == key.Name {
			return &endpointState{Phase: short(e.Phase), Reason: short(e.Reason), Since: short(e.Since)}
		}
	}
	return &endpointState{Unknown: "manxd there does not know the endpoint (yet): see \"manxctl node problems --node " +
		w.Spec.Node + "\""}
}

func (x *endpointState) write(s *sections) {
	if x.Phase == "" {
		s.line("State", "unknown: %s", x.Unknown)
		return
	}
	age := (nodeSession{Since: x.Since}).age(time.Now())
	s.line("State", "%s%s", x.Phase, when(age != "", " for "+age))
	s.line("Reason", "%s", x.Reason)
}

// assignment returns who has an address of the endpoint, since when, and how full its pool is.
func (d *describer) assignment(a netip.Addr) assignment {
	state, err := addressAmong(d.objects, a)
	if err != nil {
		return assignment{addressState: addressState{Address: a.String()}, Unknown: err.Error()}
	}
	state.Endpoint = ""
	x := assignment{addressState: state}
	for _, u := range d.usage {
		if u.Name != "" && u.CIDR.Contains(a) {
			pool := stateOf(u, d.ipPool(u.Name))
			x.PoolUse, x.use = &pool, u.Text()
		}
	}
	return x
}

func (x assignment) write(s *sections) {
	s.line("State", "%s", x.Unknown)
	x.addressState.write(s)
	s.line("Pool's use", "%s", x.use)
}

// ipPool returns a pool; nil if there is none.
func (d *describer) ipPool(name string) *model.IPPool {
	return model.Get[model.IPPool](d.objects, model.ResourceKey(model.KindIPPool, name))
}

// whyNoAddress returns what keeps a pod from an address: an assignment that is under way, the pools, and the pod's
// Events.
func (d *describer) whyNoAddress(ctx context.Context, key model.Key, w *model.WorkloadEndpoint) *noAddress {
	x := newNoAddress("", false)
	if d.pods != nil {
		if pod, err := d.pods.Pod(ctx, key.Namespace, w.Spec.Pod); err == nil && pod != nil {
			if x = newNoAddress(pod.Phase, pod.Ended()); x.Ended {
				return x
			}
		}
	}
	for _, b := range model.All[model.Block](d.objects, model.KindIPAMBlock) {
		for a := range ipam.Allocations(b) {
			if a.Attrs["namespace"] == key.Namespace && a.Attrs["pod"] != "" && a.Attrs["pod"] == w.Spec.Pod {
				state := addressState{Address: a.Address.String()}
				state.in(b, a.Address)
				x.Assigned = append(x.Assigned, state)
			}
		}
	}
	var labels map[string]string
	if n, ok := d.objects[model.ResourceKey(model.KindNode, w.Spec.Node)]; ok {
		labels = n.Metadata().GetLabels()
	}
	x.Pools, x.NoFurtherBlock = d.poolChoices(ipam.Asker{Node: w.Spec.Node, Use: v3.IPPoolAllowedUseWorkload,
		NodeLabels: labels, NamespaceLabels: namespaceLabels(d.objects, key.Namespace)})
	if !slices.ContainsFunc(x.Pools, func(p poolChoice) bool { return p.Serves }) {
		x.Cause = "no pool serves it, unless its annotations or the CNI configuration name one"
	}
	if d.pods == nil {
		x.see = "the Events of the pod (kubectl describe pod), and the log of manxd on the node"
		return x
	}
	d.warnings(ctx, x, key.Namespace, w.Spec.Pod)
	return x
}

func (x *noAddress) write(s *sections) {
	s.line("Phase", "%s%s", x.PodPhase, when(x.Ended, ": its addresses were released when it ended"))
	for _, a := range x.Assigned {
		s.line("Assigned", "%s to handle %s since %s: the pod starts, or ended", a.Address, a.Handle, dash(a.Since))
	}
	for _, p := range x.Pools {
		s.line("Pool "+p.Pool, "%s", dashOr(p.Reason, "can serve it: "+p.use))
	}
	s.line("No further block", "%s", x.NoFurtherBlock)
	s.line("Cause", "%s", x.Cause)
	s.line("See", "%s", x.see)
	x.writeEvents(s)
}

func (x *noAddress) writeEvents(s *sections) {
	if x.NoEvents != "" {
		s.line("Events", "not shown: %s", x.NoEvents)
	}
	for _, text := range x.Events {
		s.line("Event", "%s", text)
	}
}

// warnings adds the last Warnings about a pod, among them the errors of its ADDs.
func (d *describer) warnings(ctx context.Context, x *noAddress, namespace, pod string) {
	list, err := d.pods.PodWarnings(ctx, namespace, pod)
	if err != nil {
		x.NoEvents = short(err.Error())
	}
	for _, text := range list {
		x.Events = append(x.Events, short(text))
	}
}

// policies returns which policies apply to an endpoint, in the order of evaluation, and since when they exist.
func (d *describer) policies(c *policy.Calculator, key model.Key, ingress bool) []appliedPolicy {
	list := []appliedPolicy{}
	for _, id := range c.PoliciesOf(key, ingress) {
		x := appliedPolicy{Policy: id.String(), Ignored: c.WhyIgnored(key, id),
			Since: sinceText(d.objects[model.Key{Kind: id.Kind, Namespace: id.Namespace, Name: id.Name}])}
		if p, _ := c.Policy(id); p != nil && p.Tier != "" {
			x.Tier, x.Order, x.Staged = p.Tier, explain.Order(p.Order), p.Staged
		}
		list = append(list, x)
	}
	return list
}

func writePolicies(s *sections, direction string, list []appliedPolicy) {
	s.heading(direction + " policies, in order")
	for i, p := range list {
		text := p.Policy
		if p.Tier != "" {
			text += fmt.Sprintf(" in tier %s, order %s", p.Tier, p.Order)
		}
		text += when(p.Staged, ", staged: counted, not enforced")
		text += when(p.Since != "", ", since "+p.Since)
		text += when(p.Ignored != "", " (ignored: "+p.Ignored+")")
		fmt.Fprintf(s, "  %d. %s\n", i+1, table.OneLine(text))
	}
	if len(list) == 0 {
		s.line("None", "nothing is programmed for it while it has no address")
	}
}
