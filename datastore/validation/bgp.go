package validation

import (
	"fmt"
	"net/netip"
	"regexp"
	"strconv"
	"strings"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/manxnet/manx/datastore/model"
)

func defaultBGPConfiguration(b *model.BGPConfiguration) {
	if b.Spec.LogSeverityScreen == "" {
		b.Spec.LogSeverityScreen = "Info"
	}
	if b.Spec.ServiceLoadBalancerAggregation == nil {
		b.Spec.ServiceLoadBalancerAggregation = ptr(v3.ServiceLoadBalancerAggregationEnabled)
	}
}

func checkBGPConfiguration(c *check, b *model.BGPConfiguration) {
	s := b.Spec
	checkGlobalOnly(c, b)
	foldedEnum(c, "spec.logSeverityScreen", s.LogSeverityScreen, "Trace", "Debug", "Info", "Warning", "Error", "Fatal")
	for i, n := range s.ServiceClusterIPs {
		c.network(at("spec.serviceClusterIPs", i)+".cidr", n.CIDR)
	}
	for i, n := range s.ServiceExternalIPs {
		c.network(at("spec.serviceExternalIPs", i)+".cidr", n.CIDR)
	}
	for i, n := range s.ServiceLoadBalancerIPs {
		c.network(at("spec.serviceLoadBalancerIPs", i)+".cidr", n.CIDR)
	}
	enumPtr(c, "spec.serviceLoadBalancerAggregation", s.ServiceLoadBalancerAggregation,
		v3.ServiceLoadBalancerAggregationEnabled, v3.ServiceLoadBalancerAggregationDisabled)
	checkCommunities(c, s)
	if s.NodeToNodeMeshEnabled != nil && !*s.NodeToNodeMeshEnabled {
		c.failIf(s.NodeMeshPassword != nil, "spec.nodeMeshPassword", "set",
			"cannot be set while nodeToNodeMeshEnabled is false")
		c.failIf(s.NodeMeshMaxRestartTime != nil, "spec.nodeMeshMaxRestartTime", "set",
			"cannot be set while nodeToNodeMeshEnabled is false")
	}
	c.duration("spec.nodeMeshMaxRestartTime", s.NodeMeshMaxRestartTime)
	if s.BindMode != nil {
		brokenEnum(c, "spec.bindMode", *s.BindMode, v3.BindModeNone, v3.BindModeNodeIP)
	}
	for i, p := range s.IgnoredInterfaces {
		if !ignoredInterface.MatchString(p) || p == "*" {
			c.fail(at("spec.ignoredInterfaces", i), p,
				`must be an interface name or a pattern with "*", but not "*" alone`)
		}
	}
	c.ip("spec.localWorkloadPeeringIPV4", s.LocalWorkloadPeeringIPV4, 4)
	c.ip("spec.localWorkloadPeeringIPV6", s.LocalWorkloadPeeringIPV6, 6)
	enumPtr(c, "spec.programClusterRoutes", s.ProgramClusterRoutes, clusterRoutes...)
	c.priority("spec.ipv4NormalRoutePriority", s.IPv4NormalRoutePriority)
	c.priority("spec.ipv6NormalRoutePriority", s.IPv6NormalRoutePriority)
}

var (
	ignoredInterface = regexp.MustCompile(`^[a-zA-Z0-9_.*-]{1,15}$`)
	clusterRoutes    = []string{"Enabled", "Disabled", "EnabledIPIPOnly", "EnabledNoEncapOnly"}
)

const globalOnly = `can only be set in the BGPConfiguration named "default"`

// checkGlobalOnly refuses settings that are undefined for a single node.
func checkGlobalOnly(c *check, b *model.BGPConfiguration) {
	if c.key.Name == "default" {
		return
	}
	s := b.Spec
	if s.NodeToNodeMeshEnabled != nil {
		c.fail("spec.nodeToNodeMeshEnabled", *s.NodeToNodeMeshEnabled, globalOnly)
	}
	for _, x := range []struct {
		set   bool
		field string
	}{
		{s.ASNumber != nil, "asNumber"},
		{len(s.ServiceClusterIPs) > 0, "serviceClusterIPs"},
		{len(s.ServiceExternalIPs) > 0, "serviceExternalIPs"},
		{len(s.ServiceLoadBalancerIPs) > 0, "serviceLoadBalancerIPs"},
		{s.NodeMeshPassword != nil, "nodeMeshPassword"},
		{s.NodeMeshMaxRestartTime != nil, "nodeMeshMaxRestartTime"},
	} {
		c.failIf(x.set, "spec."+x.field, "set", globalOnly)
	}
}

func checkCommunities(c *check, s model.BGPConfigurationSpec) {
	names := map[string]bool{}
	c.failIf(len(s.Communities) > 500, "spec.communities", len(s.Communities), "can have at most 500 entries")
	c.failIf(len(s.Communities) > 0 && len(s.PrefixAdvertisements) == 0, "spec.communities", len(s.Communities),
		"are of no use without prefixAdvertisements")
	for i, k := range s.Communities {
		field := at("spec.communities", i)
		c.failIf(k.Name == "", field+".name", "", "is required")
		c.name(field+".name", k.Name)
		if err := checkCommunity(k.Value); err != nil {
			c.fail(field+".value", k.Value, "%s", err)
		}
		names[k.Name] = true
	}
	c.failIf(len(s.PrefixAdvertisements) > 500, "spec.prefixAdvertisements", len(s.PrefixAdvertisements),
		"can have at most 500 entries")
	for i, p := range s.PrefixAdvertisements {
		field := at("spec.prefixAdvertisements", i)
		c.network(field+".cidr", p.CIDR)
		c.failIf(len(p.Communities) == 0, field+".communities", "", "is required")
		c.failIf(len(p.Communities) > 50, field+".communities", len(p.Communities), "can have at most 50 entries")
		for j, k := range p.Communities {
			if err := checkCommunity(k); err != nil && !names[k] {
				c.fail(at(field+".communities", j), k, "must be a name from spec.communities, AA:NN or AA:NN:MM")
			}
		}
	}
}

// checkCommunity checks a standard community (RFC 1997, two numbers of 16 bits) or a large one (RFC 8092, three of 32).
func checkCommunity(text string) error {
	parts := strings.Split(text, ":")
	bits := map[int]int{2: 16, 3: 32}[len(parts)]
	for _, p := range parts {
		if _, err := strconv.ParseUint(p, 10, max(bits, 1)); bits == 0 || err != nil {
			return fmt.Errorf("must be AA:NN with numbers up to 65535, or AA:NN:MM with numbers up to 4294967295")
		}
	}
	return nil
}

// CheckPeerFilters lists the missing filters of a BGPPeer. It is separate from validation because it needs the filters.
func CheckPeerFilters(p *model.BGPPeer, filters model.Reader) []model.FieldError {
	var errs []model.FieldError
	for i, name := range p.Spec.Filters {
		if filters.Get(model.ResourceKey(model.KindBGPFilter, name)) == nil {
			errs = append(errs, model.FieldError{Field: at("spec.filters", i), Value: name,
				Rule: "must be a BGPFilter that exists: create it first"})
		}
	}
	return errs
}

func checkBGPPeer(c *check, p *model.BGPPeer) {
	s := p.Spec
	c.failIf(s.Node != "" && s.NodeSelector != "", "spec.nodeSelector", s.NodeSelector,
		"cannot be set together with node")
	c.name("spec.node", s.Node)
	c.selector("spec.nodeSelector", s.NodeSelector)
	c.selector("spec.peerSelector", s.PeerSelector)
	c.selector("spec.localWorkloadSelector", s.LocalWorkloadSelector)
	checkPeerForm(c, s)
	checkPeerAddress(c, s)
	if s.NextHopMode != nil {
		c.failIf(s.KeepOriginalNextHop, "spec.nextHopMode", *s.NextHopMode,
			"cannot be set together with keepOriginalNextHop")
		brokenEnum(c, "spec.nextHopMode", *s.NextHopMode, "Auto", "Self", "Keep")
	}
	brokenEnum(c, "spec.sourceAddress", s.SourceAddress, v3.SourceAddressUseNodeIP, v3.SourceAddressNone)
	if s.ReversePeering != nil {
		brokenEnum(c, "spec.reversePeering", *s.ReversePeering, v3.ReversePeeringAuto, v3.ReversePeeringManual)
	}
	c.duration("spec.maxRestartTime", s.MaxRestartTime)
	c.duration("spec.keepaliveTime", s.KeepaliveTime)
	if n := s.NumAllowedLocalASNumbers; n != nil {
		c.failIf(*n < 0, "spec.numAllowedLocalASNumbers", *n, "cannot be negative")
	}
	for i, f := range s.Filters {
		c.failIf(f == "", at("spec.filters", i), f, "must name a BGPFilter")
		c.name(at("spec.filters", i), f)
	}
}

// checkPeerForm checks that a peer is defined in exactly one way, with the fields for that way.
func checkPeerForm(c *check, s model.BGPPeerSpec) {
	if s.PeerSelector != "" {
		c.failIf(s.PeerIP != "", "spec.peerSelector", s.PeerSelector, "cannot be set together with peerIP")
		c.failIf(s.ASNumber != 0, "spec.asNumber", s.ASNumber, "cannot be set together with peerSelector: each node "+
			"has its own")
	}
	if s.LocalWorkloadSelector != "" {
		c.failIf(s.PeerIP != "", "spec.localWorkloadSelector", s.LocalWorkloadSelector,
			"cannot be set together with peerIP")
		c.failIf(s.PeerSelector != "", "spec.localWorkloadSelector", s.LocalWorkloadSelector,
			"cannot be set together with peerSelector")
		c.failIf(s.ASNumber == 0, "spec.asNumber", s.ASNumber, "is required with localWorkloadSelector")
	}
}

func checkPeerAddress(c *check, s model.BGPPeerSpec) {
	var peer netip.AddrPort
	if s.PeerIP != "" {
		var err error
		if peer, err = model.ParsePeerIP(s.PeerIP); err != nil {
			c.broken("spec.peerIP", s.PeerIP, "%s", err)
		}
	}
	if s.ReachableBy == "" {
		return
	}
	c.failIf(s.PeerIP == "", "spec.reachableBy", s.ReachableBy, "needs peerIP")
	gateway, rule := parseIP(s.ReachableBy, 0)
	if rule != "" {
		c.broken("spec.reachableBy", s.ReachableBy, "%s", rule)
		return
	}
	c.failIf(peer.IsValid() && gateway.Is4() != peer.Addr().Is4(), "spec.reachableBy", s.ReachableBy,
		"must be of the same family as peerIP")
}

func (c *check) duration(field string, d *metav1.Duration) {
	if d != nil {
		c.failIf(d.Duration < 0, field, d.Duration, "cannot be negative")
	}
}

// priority checks a route metric.
func (c *check) priority(field string, p *int) {
	if p != nil {
		c.failIf(*p < 1 || *p > 1<<31-2, field, *p, "must be from 1 to 2147483646")
	}
}

func ptr[T any](v T) *T { return &v }
