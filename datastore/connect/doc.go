// Package connect finds the settings of a program's datastore, in the environment, in files or as a local manxd has
// recorded them, and opens it.
package connect
