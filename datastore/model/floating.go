package model

import v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"

// UsesFloatingIPs reports whether workloads are reachable by floating addresses.
func (s *FelixConfigurationSpec) UsesFloatingIPs() bool {
	return s.FloatingIPs != nil && *s.FloatingIPs == v3.FloatingIPsEnabled
}

// MergeFloatingIPs merges the setting floatingIPs of the cluster's and of a node's FelixConfiguration: Enabled takes
// priority. Calico's clients write Disabled as a default into each object, also into those of nodes, so that Disabled
// expresses no choice.
func MergeFloatingIPs(a, b *v3.FloatingIPType) *v3.FloatingIPType {
	if a != nil && *a == v3.FloatingIPsEnabled || b == nil {
		return a
	}
	return b
}
