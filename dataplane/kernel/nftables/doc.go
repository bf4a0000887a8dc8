// Package nftables reads and changes the table inet manx of the kernel's nf_tables as plain data (ruleset), and traces
// packets through the rules of all tables. It has its own codec: batch.go and commit.go for transactions, match.go and
// rule.go for expressions, set.go for sets, read.go and read_set.go for reading.
package nftables
