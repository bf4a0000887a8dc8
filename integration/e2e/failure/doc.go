// Package failure has daemons, peers, cables, hosts and the datastore fail, while traffic has to go on.
package failure
