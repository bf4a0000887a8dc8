package validation

import (
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/datastore/selector"
)

// check collects the broken rules of one object. There are two severities. fail is for writers of an object. broken is
// for errors that make an object unsafe to use: a stored object that breaks such a rule is quarantined, while one that
// breaks only rules of the other kind may come from a newer version and is used.
type check struct {
	key     model.Key
	lenient bool
	errs    []model.FieldError
}

func (c *check) broken(field string, value any, rule string, args ...any) {
	c.errs = append(c.errs, model.FieldError{Field: field, Value: value, Rule: fmt.Sprintf(rule, args...)})
}

func (c *check) fail(field string, value any, rule string, args ...any) {
	if !c.lenient {
		c.broken(field, value, rule, args...)
	}
}

// failIf is fail for a rule without arguments.
func (c *check) failIf(wrong bool, field string, value any, rule string) {
	if wrong {
		c.fail(field, value, "%s", rule)
	}
}

// at returns the name of a list's element.
func at(field string, i int) string { return fmt.Sprintf("%s[%d]", field, i) }

func list[T ~string](allowed []T) string {
	texts := make([]string, len(allowed))
	for i, a := range allowed {
		texts[i] = string(a)
	}
	return strings.Join(texts, ", ")
}

// enum requires one of the allowed values, or none.
func enum[T ~string](c *check, field string, value T, allowed ...T) {
	if value != "" && !slices.Contains(allowed, value) {
		c.fail(field, value, "must be one of %s", list(allowed))
	}
}

// enumPtr requires one of the allowed values in an optional field.
func enumPtr[T ~string](c *check, field string, value *T, allowed ...T) {
	if value != nil && !slices.Contains(allowed, *value) {
		c.fail(field, *value, "must be one of %s", list(allowed))
	}
}

// brokenEnum is enum for a field that Manx must understand.
func brokenEnum[T ~string](c *check, field string, value T, allowed ...T) {
	if value != "" && !slices.Contains(allowed, value) {
		c.broken(field, value, "must be one of %s", list(allowed))
	}
}

// foldedEnum is enum without regard to letter case.
func foldedEnum(c *check, field, value string, allowed ...string) {
	if value != "" && !slices.ContainsFunc(allowed, func(a string) bool { return strings.EqualFold(a, value) }) {
		c.fail(field, value, "must be one of %s", list(allowed))
	}
}

// selector parses an optional selector. A malformed one is broken.
func (c *check) selector(field, text string) *selector.Selector {
	if len(text) > maxSelector {
		c.fail(field, text[:40]+"...", "a selector may have at most %d characters, this has %d", maxSelector, len(text))
	}
	s, err := selector.Parse(text)
	if err != nil {
		c.broken(field, text, "must be a selector: %s", err)
		return nil
	}
	return s
}

const maxSelector = 1024

// parseIP parses an address; family is 4, 6 or 0 for either. It returns the broken rule, empty for a valid text. An
// IPv4 address in IPv6 form is an IPv4 address.
func parseIP(text string, family int) (netip.Addr, string) {
	a, err := netip.ParseAddr(text)
	switch {
	case err != nil || a.Zone() != "":
		return netip.Addr{}, "must be " + familyName(family) + " address"
	case family != 0 && (family == 4) != a.Unmap().Is4():
		return netip.Addr{}, "must be " + familyName(family) + " address"
	}
	return a.Unmap(), ""
}

// parseNet parses a CIDR whose host bits may be set or a bare address.
func parseNet(text string, family int) (netip.Prefix, string) {
	if !strings.Contains(text, "/") {
		a, rule := parseIP(text, family)
		if rule != "" {
			return netip.Prefix{}, rule + " or CIDR"
		}
		return netip.PrefixFrom(a, a.BitLen()), ""
	}
	p, err := netip.ParsePrefix(text)
	if err != nil || (family != 0 && (family == 4) != p.Addr().Is4()) {
		return netip.Prefix{}, "must be " + familyName(family) + " address or CIDR"
	}
	return p, ""
}

// strictNet returns the error in the text of a network that parseNet has parsed. Calico's own programs skip the whole
// object for it.
func strictNet(text string, p netip.Prefix) string {
	switch {
	case !strings.Contains(text, "/"):
		return fmt.Sprintf("must be a CIDR: write %s", p)
	case p != p.Masked():
		return fmt.Sprintf("must not have host bits set: %s is the network", p.Masked())
	}
	return ""
}

// parseMasked parses a CIDR without host bits.
func parseMasked(text string) (netip.Prefix, string) {
	p, err := netip.ParsePrefix(text)
	if err != nil {
		return netip.Prefix{}, "must be a CIDR: ADDRESS/LENGTH"
	}
	if p != p.Masked() {
		return p.Masked(), fmt.Sprintf("must not have host bits set: %s is the network", p.Masked())
	}
	return p, ""
}

func familyName(family int) string {
	switch family {
	case 4:
		return "an IPv4"
	case 6:
		return "an IPv6"
	}
	return "an IP"
}

// ip requires an address of the family in an optional field.
func (c *check) ip(field, text string, family int) {
	if text == "" {
		return
	}
	if _, rule := parseIP(text, family); rule != "" {
		c.fail(field, text, "%s", rule)
	}
}

// network requires a CIDR without host bits.
func (c *check) network(field, text string) {
	if _, rule := parseMasked(text); rule != "" {
		c.fail(field, text, "%s", rule)
	}
}

func (c *check) mac(field, text string) {
	if text == "" {
		return
	}
	if _, err := net.ParseMAC(text); err != nil {
		c.fail(field, text, "must be a MAC address, like 66:11:22:33:44:55")
	}
}

var nameFormat = regexp.MustCompile(`^[a-zA-Z0-9_.-]{1,128}$`)

func (c *check) name(field, text string) {
	if text != "" && !nameFormat.MatchString(text) {
		c.fail(field, text, "must be a name: 1 to 128 letters, digits, '_', '.' or '-'")
	}
}

// annotations checks the keys: Calico's own programs skip the whole object for a malformed one.
func (c *check) annotations(field string, annotations map[string]string) {
	for k := range annotations {
		if msgs := validation.IsQualifiedName(strings.ToLower(k)); len(msgs) > 0 {
			c.fail(field, k, "the key is no qualified name: %s", msgs[0])
		}
	}
}

// checkMetadata applies the rules for every resource.
func checkMetadata(c *check, info model.KindInfo, value any) {
	m := (&model.Object{Value: value}).Metadata()
	if m == nil || c.lenient {
		return
	}
	switch {
	case m.GetName() == "":
		c.fail("metadata.name", "", "is required")
	case len(validation.IsDNS1123Subdomain(m.GetName())) > 0:
		c.fail("metadata.name", m.GetName(), "must be at most 253 lower-case letters, digits, '-' and '.', beginning "+
			"and ending with a letter or digit")
	}
	c.namespace(info, m.GetNamespace())
	c.labels("metadata.labels", m.GetLabels())
	size := 0
	for k, v := range m.GetAnnotations() {
		size += len(k) + len(v)
		if msgs := validation.IsQualifiedName(strings.ToLower(k)); len(msgs) > 0 {
			c.fail("metadata.annotations", k, "the key is no qualified name: %s", msgs[0])
		}
	}
	if size > maxAnnotations {
		c.fail("metadata.annotations", fmt.Sprintf("%d bytes", size), "must have at most %d bytes together",
			maxAnnotations)
	}
}

const maxAnnotations = 256 << 10

func (c *check) namespace(info model.KindInfo, namespace string) {
	switch {
	case !info.Namespaced && namespace != "":
		c.fail("metadata.namespace", namespace, "%s is not namespaced", info.Kind)
	case info.Namespaced && namespace == "":
		c.fail("metadata.namespace", "", "is required")
	case namespace != "" && len(validation.IsDNS1123Label(namespace)) > 0:
		c.fail("metadata.namespace", namespace, "must be at most 63 lower-case letters, digits and '-'")
	}
}

func (c *check) labels(field string, labels map[string]string) {
	for k, v := range labels {
		if msgs := validation.IsQualifiedName(k); len(msgs) > 0 {
			c.fail(field, k, "the key is no qualified name: %s", msgs[0])
		}
		if msgs := validation.IsValidLabelValue(v); len(msgs) > 0 {
			c.fail(field+"."+k, v, "is no label value: %s", msgs[0])
		}
	}
}
