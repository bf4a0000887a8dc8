// Package connect opens the datastore that a program's settings name, whatever its backend.
package connect
