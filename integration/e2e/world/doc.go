// Package world has the clusters that the end-to-end tests share, and their observations: sessions, routes, metrics,
// flows of packets.
package world
