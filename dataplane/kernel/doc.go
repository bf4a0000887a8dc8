// Package kernel reads and changes the host's network: routes, links, addresses and sysctls, as plain values.
package kernel
