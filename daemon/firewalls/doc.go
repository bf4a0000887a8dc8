// Package firewalls watches the rules of other programs in nftables, and finds those that drop packets which policy
// allows. It reads them and changes none.
package firewalls
