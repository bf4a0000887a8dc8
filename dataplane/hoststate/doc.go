// Package hoststate is the part of the datastore, and of the decisions made from it, that targets on one host follow.
package hoststate
