// Package nft programs a ruleset.Table into the kernel: one transaction for each change. It
// leaves out the parts that the kernel refuses.
package nft
