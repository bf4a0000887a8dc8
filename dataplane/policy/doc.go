// Package policy decides, without side effects, what rules one node needs: it compiles policies, keeps track of who
// they select and who they name, and writes the outcome into a ruleset.Table, at a cost that follows the change.
package policy
