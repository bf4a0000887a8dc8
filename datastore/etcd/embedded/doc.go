// Package embedded runs an etcd server inside this process, for clusters without an etcd.
package embedded
