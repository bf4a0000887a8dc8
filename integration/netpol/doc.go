// Command netpol runs truth tables of NetworkPolicy (format netpol-tables/1) against manxd and the kernel in network
// namespaces, and against the evaluation of the same rules, and prints every wrong cell.
package main
