// Package forget deletes the tracked connections of addresses whose owner has changed, in batches and beside the loop
// of a target.
package forget
