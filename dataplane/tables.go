package dataplane

import "github.com/manxnet/manx/dataplane/kernel"

// ownTables are the routing tables that hold routes of a node: those are read, watched, repaired and cleaned up, and no
// other is touched.
func ownTables() []kernel.Table { return []kernel.Table{kernel.MainTable} }
