package model

import (
	"fmt"
	"time"
)

// Annotations of a Node by which it leaves the network for maintenance and comes back. The order is written by people
// (or manxctl node drain), the answer by the daemon of that node, so that both survive restarts and can be seen from
// anywhere.
const (
	// AnnotationDrain orders the drain; its value is when, as RFC 3339.
	AnnotationDrain = "manx.io/drain"
	// AnnotationDrainTimeout is how long traffic may take to leave before routes are withdrawn all the same, as a Go
	// duration.
	AnnotationDrainTimeout = "manx.io/drain-timeout"
	// AnnotationDrained is the answer: since when the routes are withdrawn, as RFC 3339.
	AnnotationDrained = "manx.io/drained"
)

// DefaultDrainTimeout counts where AnnotationDrainTimeout says nothing.
const DefaultDrainTimeout = time.Minute

// DrainPhase is how far a node has left the network.
type DrainPhase string

// A node goes through these in a circle.
const (
	InService DrainPhase = ""
	Draining  DrainPhase = "draining"  // routes are announced as the last choice
	Drained   DrainPhase = "drained"   // routes are withdrawn
	Returning DrainPhase = "returning" // routes are announced again, as the last choice until others have them
)

// DrainPhase follows from order and answer alone.
func (n *Node) DrainPhase() DrainPhase {
	_, ordered := n.Annotations[AnnotationDrain]
	_, done := n.Annotations[AnnotationDrained]
	switch {
	case ordered && done:
		return Drained
	case ordered:
		return Draining
	case done:
		return Returning
	}
	return InService
}

// DrainTimeout returns how long traffic may take to leave; the default and an error if the annotation cannot be read.
func (n *Node) DrainTimeout() (time.Duration, error) {
	text, ok := n.Annotations[AnnotationDrainTimeout]
	if !ok {
		return DefaultDrainTimeout, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 {
		return DefaultDrainTimeout, fmt.Errorf("annotation %s = %q is ignored: want a duration such as 90s",
			AnnotationDrainTimeout, text)
	}
	return d, nil
}
