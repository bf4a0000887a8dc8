package main

// The phases that manxctl itself acts upon; all others are shown as they come.
const (
	phaseDone    = "applied"
	phaseFailed  = "failed"
	phaseBlocked = "blocked"
)
