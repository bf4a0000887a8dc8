// Package netlink exchanges messages with the kernel over netlink sockets (netlink(7)). No other code of manxd opens
// such sockets; the packages beside it know the content of their messages.
package netlink
