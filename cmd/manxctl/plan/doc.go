// Package plan shows what BGP would be on a node, from resource files instead of a datastore, and how two such states
// differ.
package plan
