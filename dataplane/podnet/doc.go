// Package podnet wires a workload's network namespace to its host: a veth pair, addresses, and routes through a gateway
// for which the host answers.
package podnet
