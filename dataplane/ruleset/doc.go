// Package ruleset is one nftables table as plain data, which is programmed, printed and evaluated.
package ruleset
