// Package etcd keeps the Calico data model in etcd.
package etcd
