// Package nft brings the table in the kernel to what a ruleset.Table wants: one transaction for each change, and what
// the kernel refuses kept apart from the rest.
package nft
