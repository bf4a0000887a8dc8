// Command manx-cni attaches containers to the network of this node: a CNI network plugin (as "manx", "manx-cni" or
// "calico") and a CNI IPAM plugin (as "manx-ipam" or "calico-ipam") in one binary, told apart by the name it runs
// under.
//
// It starts fast, because it knows no datastore: manxd answers its questions over a unix socket. While there is no
// manxd it becomes manx-cni-direct, which goes to the datastore itself.
package main
