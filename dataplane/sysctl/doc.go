// Package sysctl keeps the variables of the kernel that make the host a router for its workloads.
package sysctl
