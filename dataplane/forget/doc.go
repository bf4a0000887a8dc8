// Package forget deletes connections of addresses that belong to somebody else now, beside a loop.
package forget
