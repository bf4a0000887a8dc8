// Package ruleset is one nftables table as plain data: what is programmed, what a person reads and what Eval evaluates.
package ruleset
