// Package embedded runs an etcd server inside this process, for clusters that have none of their own.
package embedded
