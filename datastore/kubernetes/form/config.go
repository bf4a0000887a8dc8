package form

// Config has the settings that the form of some kinds depends on.
type Config struct {
	// UsePodCIDR derives tunnel addresses from the range that Kubernetes gave each node for its pods, as where pods get
	// their addresses from a plugin that takes them out of that range.
	UsePodCIDR bool
	// InterfacePrefix begins the names of pods' interfaces on the host: "cali" if it is empty.
	InterfacePrefix string
}
