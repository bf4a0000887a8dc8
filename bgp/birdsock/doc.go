// Package birdsock answers the commands of BIRD 1.6 that scripts and exporters send to its control socket.
package birdsock
