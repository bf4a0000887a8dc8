// Package filter is the target of this host's packet filter: policy's calculator computes the rules, nft applies them
// to the kernel.
package filter
