package bgp

// Lengths of path attributes in bytes (RFC 4271 section 4.3, RFC 1997, RFC 8092).
const (
	communityLength      = 4
	largeCommunityLength = 12
	asLength             = 4 + 2 // four octets in AS_PATH, or two, and four in AS4_PATH (RFC 6793)
	segmentLength        = 2

	// baseGrowth is for what BGP itself adds to a route that is passed on: our AS in a new segment, LOCAL_PREF, MED,
	// ORIGINATOR_ID and CLUSTER_LIST, GRACEFUL_SHUTDOWN, the headers of both attributes of communities, and one more
	// octet for the length of each attribute that grows.
	baseGrowth = asLength + segmentLength + 7 + 7 + 7 + 8 + communityLength + 4 + 4 + 6

	// mostGrowth is the most by which the operations of a rule, or the communities of a prefix, may make a route grow.
	// A message has 4,096 bytes.
	mostGrowth = 1000
)

// AttributeGrowth returns by how many bytes at most the path attributes of a learned route grow before it is passed on
// to a peer: by an import filter, by BGP itself, by prefixAdvertisements, and by an export filter.
func (d Desired) AttributeGrowth() int {
	var in, out, tags int
	for i := range d.Sessions {
		in = max(in, d.filterGrowth(&d.Sessions[i], false))
		out = max(out, d.filterGrowth(&d.Sessions[i], true))
	}
	for i, t := range d.Tags {
		tags = max(tags, tagging(d.Tags[:i]).growthWith(t)) // a route gets the communities of each prefix it lies in
	}
	return in + baseGrowth + tags + out
}

func (d Desired) filterGrowth(s *Session, export bool) (most int) {
	for r := range d.rules(s, export) {
		most = max(most, growth(r.Operations))
	}
	return most
}

func growth(operations []Operation) (n int) {
	for _, o := range operations {
		switch {
		case o.AddCommunity != nil:
			n += communityLength
		case o.AddLarge != nil:
			n += largeCommunityLength
		case len(o.PrependASPath) > 0:
			n += segmentLength + asLength*len(o.PrependASPath)
		}
	}
	return n
}

func (t Tag) growth() int {
	return communityLength*len(t.Communities) + largeCommunityLength*len(t.LargeCommunities)
}
