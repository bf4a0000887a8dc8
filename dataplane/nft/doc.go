// Package nft programs a ruleset.Table into the kernel: one transaction for each change.
//
// It has no driver (package driver): rules are no objects that each succeed or fail alone. A change is one transaction,
// the kernel's table is compared as a whole, and a part that the kernel refuses is found by trying halves and left out.
package nft
