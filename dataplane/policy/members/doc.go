// Package members keeps the members of a set while each comes from several sources, and joins networks that overlap,
// which the kernel refuses in one set.
package members
