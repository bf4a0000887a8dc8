// Package apiserver runs a real etcd and a real kube-apiserver on loopback, for tests.
package apiserver
