// Package connect opens the datastore of a program's settings, whatever its backend.
package connect
