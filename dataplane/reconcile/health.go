package reconcile

import "time"

// Health sums up the state of the objects that a target keeps.
type Health struct {
	// Part is its name for users, such as "routes"; empty if nothing is kept at present.
	Part string
	// Failures is the number of objects that could not reach their desired state; they are tried again.
	Failures int
	// Problem is the reason of one of them; nil without failures.
	Problem error
}

// Notice is something that a person should know.
type Notice struct {
	Subject, Text string
	Since         time.Time
}
