package route

import "github.com/manxnet/manx/dataplane/kernel"

// OwnTables are the routing tables that hold routes of a node: those are read, watched, repaired and cleaned up, and no
// other is touched. A watch has the set that it began with: where the set may change, another watch follows.
func OwnTables() []kernel.Table { return []kernel.Table{kernel.MainTable} }
