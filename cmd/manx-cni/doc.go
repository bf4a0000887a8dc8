// Command manx-cni attaches containers to the network of this node: a CNI network plugin (as "manx", "manx-cni" or
// "calico") and a CNI IPAM plugin (as "manx-ipam" or "calico-ipam") in one binary, told apart by the name it runs under.
package main
