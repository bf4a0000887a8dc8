// Package failure tests traffic during failures of daemons, peers, cables, hosts and the datastore.
package failure
