// Package wireguard reads and changes the WireGuard devices of a network namespace, by wgctrl: the one place that knows
// their netlink protocol. Private keys are made here, are given to the kernel, and are never returned.
package wireguard
