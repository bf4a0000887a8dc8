package bgp

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
)

// tagging is the content of prefixAdvertisements.
type tagging []Tag

// communities reads prefixAdvertisements. The node's own BGPConfiguration, if it has any, replaces the list of the
// default as a whole; names are looked up in the same object.
func (c *cluster) communities() tagging {
	object, spec := "BGPConfiguration/default", c.config
	if own := c.perNode[c.me.name]; len(own.PrefixAdvertisements) > 0 {
		object, spec = "BGPConfiguration/node."+c.me.name, own
	}
	names := map[string]string{}
	for _, n := range spec.Communities {
		names[n.Name] = n.Value
	}
	t := make(tagging, 0, len(spec.PrefixAdvertisements))
	for _, a := range spec.PrefixAdvertisements {
		for _, tag := range c.readTags(object, a, names) {
			if n := t.growthWith(tag); n > mostGrowth {
				c.note(object, fmt.Sprintf("the communities of %s are ignored: with those of overlapping prefixes "+
					"they add %d bytes to each route; at most %d are possible", a.CIDR, n, mostGrowth))
				continue
			}
			t = append(t, tag)
		}
	}
	return t
}

// growthWith is the length of the communities of a route that one more tag may lead to.
func (t tagging) growthWith(more Tag) int {
	n := more.growth()
	for _, tag := range t {
		if tag.Prefix.Overlaps(more.Prefix) {
			n += tag.growth()
		}
	}
	return n
}

func (c *cluster) readTags(object string, a v3.PrefixAdvertisement, names map[string]string) tagging {
	p, err := netip.ParsePrefix(a.CIDR)
	if err != nil {
		c.note(object, fmt.Sprintf("spec.prefixAdvertisements.cidr = %q is ignored: want ADDRESS/LENGTH", a.CIDR))
		return nil
	}
	t := make(tagging, 1)
	t[0].Prefix = p.Masked()
	for _, text := range a.Communities {
		if value, ok := names[text]; ok {
			text = value
		}
		switch n, err := parseCommunity(text); {
		case err != nil:
			c.note(object, fmt.Sprintf("community %q of %s is ignored: %v", text, a.CIDR, err))
		case len(n) == 2:
			t[0].Communities = append(t[0].Communities, n[0]<<16|n[1])
		default:
			t[0].LargeCommunities = append(t[0].LargeCommunities, [3]uint32(n))
		}
	}
	return t
}

// parseCommunity reads "aa:nn" into two numbers of 16 bits and "aa:nn:mm" into three of 32 bits.
func parseCommunity(text string) ([]uint32, error) {
	parts := strings.Split(text, ":")
	bits := 32
	if len(parts) == 2 {
		bits = 16
	} else if len(parts) != 3 {
		return nil, fmt.Errorf("want AA:NN, AA:NN:MM or a name from spec.communities")
	}
	n := make([]uint32, len(parts))
	for i, part := range parts {
		v, err := strconv.ParseUint(part, 10, bits)
		if err != nil {
			return nil, fmt.Errorf("%q is no number of %d bits", part, bits)
		}
		n[i] = uint32(v)
	}
	return n, nil
}

// of gives the communities of a route, sorted and each once.
func (t tagging) of(p netip.Prefix) (standard []uint32, large [][3]uint32) {
	for _, tag := range t {
		if contains(tag.Prefix, p) {
			standard = append(standard, tag.Communities...)
			large = append(large, tag.LargeCommunities...)
		}
	}
	slices.Sort(standard)
	slices.SortFunc(large, compareLarge)
	return slices.Compact(standard), slices.Compact(large)
}
