// Package etcd stores the Calico data model in etcd.
package etcd
