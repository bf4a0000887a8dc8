// Package endpointstatus keeps the files that tell a CNI plugin which workloads have their policy and routes in the
// kernel.
package endpointstatus
