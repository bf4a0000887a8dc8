package validation

import (
	"path/filepath"
	"regexp"
	"strings"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/manxnet/manx/datastore/model"
)

func defaultFelixConfiguration(f *model.FelixConfiguration) {
	s := &f.Spec
	setDefault(&s.FloatingIPs, v3.FloatingIPsDisabled)
	setDefault(&s.BPFConnectTimeLoadBalancing, v3.BPFConnectTimeLBTCP)
	setDefault(&s.BPFHostNetworkedNATWithoutCTLB, v3.BPFHostNetworkedNATEnabled)
	setDefault(&s.NFTablesMode, "Auto")
	setDefault(&s.NFTablesFlowTableOffload, "Disabled")
}

func setDefault[T any](p **T, value T) {
	if *p == nil {
		*p = &value
	}
}

var (
	keyValues = regexp.MustCompile(`^[^=,\s]+=[^=,]*(,[^=,\s]+=[^=,]*)*,?$`)
	reporter  = regexp.MustCompile(`^[a-zA-Z0-9_ -]+$`)
	rateLimit = regexp.MustCompile(`^[1-9][0-9]*/(second|minute|hour|day)$`)
)

// checkFelixConfiguration has the rules that are cheap to state. All other settings are valid; those that do not apply
// to Manx are ignored.
func checkFelixConfiguration(c *check, f *model.FelixConfiguration) {
	s := f.Spec
	c.selector("spec.nodeSelector", s.NodeSelector)
	c.failIf(s.NodeSelector != "" && (c.key.Name == "default" || strings.HasPrefix(c.key.Name, "node.")),
		"spec.nodeSelector",
		s.NodeSelector, `cannot be set in "default" or "node.NAME", whose nodes follow from the name`)
	levels := []string{"Trace", "Debug", "Info", "Warning", "Error", "Fatal"}
	foldedEnum(c, "spec.logSeverityScreen", s.LogSeverityScreen, levels...)
	foldedEnum(c, "spec.logSeverityFile", s.LogSeverityFile, levels...)
	foldedEnum(c, "spec.logSeveritySys", s.LogSeveritySys, levels...)
	foldedEnum(c, "spec.nftablesFilterDenyAction", s.NftablesFilterDenyAction, "Drop", "Reject")
	foldedEnum(c, "spec.iptablesFilterDenyAction", s.IptablesFilterDenyAction, "Drop", "Reject")
	foldedEnum(c, "spec.defaultEndpointToHostAction", s.DefaultEndpointToHostAction, "Drop", "Return", "Accept")
	foldedEnum(c, "spec.chainInsertMode", s.ChainInsertMode, "Insert", "Append")
	if s.IptablesBackend != nil {
		foldedEnum(c, "spec.iptablesBackend", string(*s.IptablesBackend), "Legacy", "NFT", "Auto")
	}
	enumPtr(c, "spec.programClusterRoutes", s.ProgramClusterRoutes, clusterRoutes...)
	enum(c, "spec.serviceLoopPrevention", s.ServiceLoopPrevention, "Drop", "Reject", "Disabled")
	enum(c, "spec.workloadSourceSpoofing", s.WorkloadSourceSpoofing, "Disabled", "Any")
	enum(c, "spec.routeSource", s.RouteSource, "CalicoIPAM", "WorkloadIPs")
	c.ip("spec.deviceRouteSourceAddress", s.DeviceRouteSourceAddress, 4)
	c.ip("spec.deviceRouteSourceAddressIPv6", s.DeviceRouteSourceAddressIPv6, 6)
	c.ip("spec.natOutgoingAddress", s.NATOutgoingAddress, 4)
	checkFelixTexts(c, s)
	checkFelixRanges(c, s)
	c.priority("spec.ipv4NormalRoutePriority", s.IPv4NormalRoutePriority)
	c.priority("spec.ipv4ElevatedRoutePriority", s.IPv4ElevatedRoutePriority)
	c.priority("spec.ipv6NormalRoutePriority", s.IPv6NormalRoutePriority)
	c.priority("spec.ipv6ElevatedRoutePriority", s.IPv6ElevatedRoutePriority)
}

func checkFelixTexts(c *check, s model.FelixConfigurationSpec) {
	if r := s.OpenstackRegion; r != "" {
		c.failIf(len(validation.IsDNS1123Label(r)) > 0 || len(r) > 46, "spec.openstackRegion", r,
			"must be a DNS label of at most 46 characters")
	}
	for _, x := range []struct{ field, text string }{
		{"spec.featureGates", s.FeatureGates}, {"spec.featureDetectOverride", s.FeatureDetectOverride},
	} {
		c.failIf(x.text != "" && !keyValues.MatchString(x.text), x.field, x.text, "must be a list KEY=VALUE,KEY=VALUE")
	}
	if p := s.EndpointStatusPathPrefix; p != "" {
		c.failIf(!filepath.IsAbs(p) && !strings.EqualFold(p, "none"), "spec.endpointStatusPathPrefix", p,
			`must be an absolute path, or "none"`)
	}
	if p := s.InterfacePrefix; p != "" {
		c.failIf(!model.IsInterfacePrefixes(p), "spec.interfacePrefix", p, model.InterfacePrefixRule)
	}
	if _, err := regexp.Compile(s.MTUIfacePattern); err != nil {
		c.fail("spec.mtuIfacePattern", s.MTUIfacePattern, "must be a regular expression: %v", err)
	}
	for i, o := range s.HealthTimeoutOverrides {
		c.failIf(!reporter.MatchString(o.Name), at("spec.healthTimeoutOverrides", i)+".name", o.Name,
			"must be letters, digits, '_', '-' and blanks")
	}
	if l := s.LogActionRateLimit; l != nil {
		c.failIf(!rateLimit.MatchString(*l), "spec.logActionRateLimit", *l,
			"must be NUMBER/second, /minute, /hour or /day")
	}
	for _, x := range []struct{ field, name string }{
		{"spec.wireguardInterfaceName", s.WireguardInterfaceName},
		{"spec.wireguardInterfaceNameV6", s.WireguardInterfaceNameV6},
	} {
		c.failIf(x.name != "" && !model.IsInterfaceName(x.name), x.field, x.name,
			"must be an interface name of at most 15 characters")
	}
}

func checkFelixRanges(c *check, s model.FelixConfigurationSpec) {
	if l := s.ExternalNodesCIDRList; l != nil {
		for i, net := range *l {
			_, rule := parseNet(net, 0)
			c.failIf(rule != "", at("spec.externalNodesList", i), net, rule)
		}
	}
	if r := s.KubeNodePortRanges; r != nil {
		c.failIf(len(*r) > 7, "spec.kubeNodePortRanges", len(*r), "can have at most 7 ranges")
		for i, p := range *r {
			c.failIf(p.PortName != "", at("spec.kubeNodePortRanges", i), p.PortName,
				"must be a port or a range of ports, not a name")
		}
	}
	c.failIf(s.RouteTableRange != nil && s.RouteTableRanges != nil, "spec.routeTableRange", "set",
		"cannot be set together with routeTableRanges")
	if p := s.DeviceRouteProtocol; p != nil {
		c.failIf(*p < 0 || *p > 255, "spec.deviceRouteProtocol", *p, "must be from 0 to 255")
	}
	if r := s.RouteTableRange; r != nil {
		c.failIf(r.Min < 1 || r.Max > 250 || r.Min > r.Max, "spec.routeTableRange", *r,
			"must be within 1 to 250, min not above max")
	}
	if s.RouteTableRanges != nil {
		total := 0
		for i, r := range *s.RouteTableRanges {
			c.failIf(r.Min < 1 || int64(r.Max) > 1<<32-1 || r.Min > r.Max, at("spec.routeTableRanges", i), r,
				"min must be at least 1 and not above max")
			total += max(0, r.Max-r.Min+1)
		}
		c.failIf(total > 65535, "spec.routeTableRanges", total, "can have at most 65535 tables")
	}
	for _, x := range []struct {
		field string
		value *int
		low   int
		high  int
	}{
		{"spec.vxlanPort", s.VXLANPort, 1, 65535},
		{"spec.vxlanVNI", s.VXLANVNI, 1, 1<<24 - 1},
		{"spec.vxlanMTU", s.VXLANMTU, 0, 65535},
		{"spec.vxlanMTUV6", s.VXLANMTUV6, 0, 65535},
		{"spec.wireguardListeningPort", s.WireguardListeningPort, 1, 65535},
		{"spec.wireguardListeningPortV6", s.WireguardListeningPortV6, 1, 65535},
		{"spec.wireguardRoutingRulePriority", s.WireguardRoutingRulePriority, 1, 32765},
	} {
		if x.value != nil && (*x.value < x.low || *x.value > x.high) {
			c.fail(x.field, *x.value, "must be from %d to %d", x.low, x.high)
		}
	}
}
