package explain

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/manxnet/manx/dataplane/policy"
)

// RuleText describes a rule: action, protocol, source, destination.
func RuleText(r *policy.Rule) string {
	words := []string{r.Action.String()}
	if r.Family != 0 {
		words = append(words, "IPv"+strconv.Itoa(r.Family))
	}
	if r.Protocol != 0 {
		words = append(words, ProtocolName(r.Protocol))
	}
	if r.NotProtocol != 0 {
		words = append(words, "not "+ProtocolName(r.NotProtocol))
	}
	if r.ICMP != nil {
		words = append(words, icmpText(r.ICMP))
	}
	if r.NotICMP != nil {
		words = append(words, "not "+icmpText(r.NotICMP))
	}
	if len(words) == 1 {
		words = append(words, "all")
	}
	if text := entityText(&r.Source); text != "" {
		words = append(words, "from "+text)
	}
	if text := entityText(&r.Destination); text != "" {
		words = append(words, "to "+text)
	}
	if r.Name != "" {
		words = append(words, "("+r.Name+")")
	}
	return strings.Join(words, " ")
}

func icmpText(i *policy.ICMP) string {
	if i.HasCode {
		return fmt.Sprintf("type %d code %d", i.Type, i.Code)
	}
	return fmt.Sprintf("type %d", i.Type)
}

func entityText(e *policy.Entity) string {
	var parts []string
	if e.Selector != nil {
		parts = append(parts, bare(e.Selector.String()))
	}
	if e.NotSelector != nil {
		parts = append(parts, "not ("+bare(e.NotSelector.String())+")")
	}
	if len(e.Nets) > 0 {
		parts = append(parts, netsText(e.Nets))
	}
	if len(e.NotNets) > 0 {
		parts = append(parts, "not "+netsText(e.NotNets))
	}
	if e.Service != (policy.Service{}) {
		parts = append(parts, "service "+e.Service.Namespace+"/"+e.Service.Name)
	}
	text := strings.Join(parts, " and ")
	if p := portsText(e.Ports); p != "" {
		text += " port " + p
	}
	if p := portsText(e.NotPorts); p != "" {
		text += " not port " + p
	}
	return strings.TrimSpace(text)
}

func netsText(nets []netip.Prefix) string {
	words := make([]string, len(nets))
	for i, n := range nets {
		words[i] = n.String()
	}
	return few(words)
}

func portsText(p policy.PortList) string {
	var words []string
	for _, r := range p.Ranges {
		words = append(words, portRange(uint32(r[0]), uint32(r[1])))
	}
	for _, n := range p.Names {
		words = append(words, strconv.Quote(n))
	}
	return few(words)
}

func portRange(low, high uint32) string {
	if high == 0 || high == low {
		return strconv.Itoa(int(low))
	}
	return fmt.Sprintf("%d-%d", low, high)
}

// few keeps lists readable.
func few(words []string) string {
	const most = 8
	if len(words) > most {
		return strings.Join(words[:most], ", ") + fmt.Sprintf(" and %d more", len(words)-most)
	}
	return strings.Join(words, ", ")
}

// bare is a selector without the parentheses around the whole of it.
func bare(selector string) string {
	depth, quote := 0, rune(0)
	for i, c := range selector {
		switch {
		case quote != 0:
			if c == quote {
				quote = 0
			}
		case c == '"', c == '\'':
			quote = c
		case c == '(':
			depth++
		case c == ')':
			depth--
		}
		if depth == 0 && i < len(selector)-1 {
			return selector
		}
	}
	return strings.TrimSuffix(strings.TrimPrefix(selector, "("), ")")
}
