package model

import v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"

// UsesFloatingIPs tells whether workloads can be reached by floating addresses.
func (s *FelixConfigurationSpec) UsesFloatingIPs() bool {
	return s.FloatingIPs != nil && *s.FloatingIPs == v3.FloatingIPsEnabled
}

// MergeFloatingIPs merges the setting floatingIPs of the cluster's and of a node's FelixConfiguration: Enabled wins.
// Calico's clients write Disabled into each object that does not say, also into those of nodes, so that Disabled is
// nobody's wish.
func MergeFloatingIPs(a, b *v3.FloatingIPType) *v3.FloatingIPType {
	if a != nil && *a == v3.FloatingIPsEnabled || b == nil {
		return a
	}
	return b
}
