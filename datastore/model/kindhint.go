package model

import (
	"fmt"
	"strings"
)

// foreignKinds are kinds of other products, with those that do here what they do there.
var foreignKinds = map[string][]Kind{
	"CiliumBGPClusterConfig": {KindBGPPeer}, "CiliumBGPNodeConfig": {KindBGPPeer},
	"CiliumBGPNodeConfigOverride": {KindBGPPeer}, "CiliumBGPPeerConfig": {KindBGPPeer},
	"CiliumBGPPeeringPolicy": {KindBGPPeer}, "CiliumBGPAdvertisement": {KindBGPConfiguration, KindBGPFilter},
	"CiliumNetworkPolicy": {KindNetworkPolicy}, "CiliumClusterwideNetworkPolicy": {KindGlobalNetworkPolicy},
	"CiliumCIDRGroup": {KindGlobalNetworkSet}, "CiliumLoadBalancerIPPool": {KindIPPool},
	"CiliumPodIPPool": {KindIPPool}, "CiliumEndpoint": {KindWorkloadEndpoint},
	"IPAddressPool": {KindIPPool}, "BGPAdvertisement": {KindBGPConfiguration, KindBGPFilter}, // MetalLB
	"FRRConfiguration":           {KindBGPPeer, KindBGPFilter},
	"AdminNetworkPolicy":         {KindClusterNetworkPolicy, KindGlobalNetworkPolicy}, // before v1alpha2
	"BaselineAdminNetworkPolicy": {KindClusterNetworkPolicy, KindGlobalNetworkPolicy},
	"ClusterGroup":               {KindGlobalNetworkSet}, // Antrea
}

// KindHint returns what to write instead of a word that is no kind: "did you mean IPPool?", or which kind has the task
// of another product's kind. It is empty for a word that is like none.
func KindHint(word string) string {
	for name, here := range foreignKinds {
		if plural := strings.TrimSuffix(name, "y"); !strings.EqualFold(word, name) &&
			!strings.EqualFold(word, name+"s") && !strings.EqualFold(word, plural+"ies") {
			continue
		}
		names := make([]string, len(here))
		for i, k := range here {
			names[i] = string(k)
		}
		whose := "another product's"
		if strings.HasSuffix(name, "AdminNetworkPolicy") {
			whose = "an earlier form of ClusterNetworkPolicy that Manx does not enforce"
		}
		return fmt.Sprintf("it is %s; the kind for that is %s here", whose, strings.Join(names, " or "))
	}
	best, far := "", 3 // two letters may be wrong
	for _, k := range kinds {
		for _, name := range append([]string{string(k.Kind), k.Plural}, k.Aliases...) {
			near := distance(strings.ToLower(word), strings.ToLower(name))
			if near < far && near < len(name)/2 {
				best, far = string(k.Kind), near
			}
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf("did you mean %s?", best)
}

// distance is Levenshtein's: the letters to add, remove or change between two words.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
