// Package policy computes, without side effects, the rules of one node: it compiles policies, keeps track of the
// endpoints that they select and name, and writes the outcome into a ruleset.Table. The cost is proportional to the
// change.
package policy
