// Package datastore reads, writes and watches the objects of the Calico data model, and mirrors them in consistent
// tables.
package datastore
