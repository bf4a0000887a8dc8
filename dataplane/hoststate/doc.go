// Package hoststate is the part of the datastore, and of what was decided from it, that targets on one host follow.
package hoststate
