// Package laststate keeps the objects that a node last read from the datastore in a file, for a start without it.
package laststate
