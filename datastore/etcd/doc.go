// Package etcd keeps the Calico data model in etcd, the user's cluster or a server embedded in this process.
package etcd
