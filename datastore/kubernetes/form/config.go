package form

// Config has the settings on which the form of some kinds depends.
type Config struct {
	// UsePodCIDR derives tunnel addresses from the node's pod CIDR, for clusters in which a plugin assigns pods'
	// addresses from that range.
	UsePodCIDR bool
	// InterfacePrefix is the prefix of pods' host interface names; "cali" if empty.
	InterfacePrefix string
}
