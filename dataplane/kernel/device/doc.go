// Package device makes the requests to the kernel that come once for a device, an address or a workload, by
// vishvananda/netlink; those that come for each route, and the watch, are packages kernel and kernel/netlink.
package device
