// Package world has the clusters that the end-to-end tests share, and what they look at: sessions, routes, metrics,
// flows of packets.
package world
