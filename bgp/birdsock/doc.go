// Package birdsock answers the questions that scripts and exporters ask BIRD 1.6 on its control socket.
package birdsock
