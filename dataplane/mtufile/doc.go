// Package mtufile keeps the file from which the CNI plugin reads the MTU of workloads.
package mtufile
