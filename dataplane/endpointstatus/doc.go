// Package endpointstatus keeps the files from which a CNI plugin learns which workloads have their policy and routes in
// the kernel.
package endpointstatus
