// Command manx-cni-direct is the CNI plugin that reaches the datastore itself. manx-cni becomes it while no manxd
// answers: under the same names, for the same calls. It also installs the plugins on a host.
package main
