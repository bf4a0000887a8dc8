// Package datastore reads, writes and watches the objects of the Calico data model and keeps them in consistent tables.
package datastore
