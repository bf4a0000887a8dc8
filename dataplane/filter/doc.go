// Package filter is the target of this host's packet filter: policy's calculator decides, nft brings the kernel there.
package filter
