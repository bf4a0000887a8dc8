// Package kernel reads and changes the host's network as plain values: routes, links, addresses and sysctls (Conn), and
// nftables (NFT).
package kernel
