// Package shape limits the bandwidth of workloads (Calico's QoS controls) with token bucket filters.
package shape
