package main

// The phases that manxctl evaluates; it prints all others unchanged.
const (
	phaseDone    = "applied"
	phaseFailed  = "failed"
	phaseBlocked = "blocked"
)
