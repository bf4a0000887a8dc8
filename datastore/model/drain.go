package model

import (
	"fmt"
	"time"
)

// Annotations of a Node for its drain and return. People (or manxctl node drain) write the request, the daemon of that
// node the state that it has reached. So both survive restarts and are visible everywhere.
const (
	// AnnotationDrain requests the drain; its value is the time of the request, as RFC 3339.
	AnnotationDrain = "manx.io/drain"
	// AnnotationDrainTimeout is the time that traffic has to leave before routes are withdrawn, as a Go duration.
	AnnotationDrainTimeout = "manx.io/drain-timeout"
	// AnnotationDrained is the state: the time since which the routes are withdrawn, as RFC 3339.
	AnnotationDrained = "manx.io/drained"
)

// DefaultDrainTimeout is the default of AnnotationDrainTimeout.
const DefaultDrainTimeout = time.Minute

// DrainPhase is the phase of a node's drain.
type DrainPhase string

// The phases of a drain and return, in their order.
const (
	InService DrainPhase = ""
	Draining  DrainPhase = "draining"  // routes are advertised with the lowest preference
	Drained   DrainPhase = "drained"   // routes are withdrawn
	Returning DrainPhase = "returning" // routes are advertised again, with the lowest preference until others have them
)

// DrainPhase returns the phase, which follows from request and state.
func (n *Node) DrainPhase() DrainPhase {
	_, requested := n.Annotations[AnnotationDrain]
	_, done := n.Annotations[AnnotationDrained]
	switch {
	case requested && done:
		return Drained
	case requested:
		return Draining
	case done:
		return Returning
	}
	return InService
}

// DrainTimeout returns the time that traffic has to leave; the default and an error if the annotation is malformed.
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
