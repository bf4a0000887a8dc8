// Package install puts the CNI plugins and their configuration on a host, and takes them away. Every file is written
// beside its place and renamed, so that a runtime sees the old one or the whole new one, whenever the process dies.
package install
