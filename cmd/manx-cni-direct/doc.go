// Command manx-cni-direct is the CNI plugin with its own datastore client. manx-cni executes it while manxd does not
// answer: under the same names, for the same calls. It also installs the plugins on a host.
package main
