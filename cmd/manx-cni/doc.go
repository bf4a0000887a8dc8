// Command manx-cni attaches containers to the network of this node: a CNI network plugin (as "manx", "manx-cni" or
// "calico") and a CNI IPAM plugin (as "manx-ipam" or "calico-ipam") in one binary. The name it runs under selects the
// plugin. Under the name "install" it is the command install, as in the images of Calico.
//
// It starts fast, because it has no datastore client: manxd serves its requests over a unix socket. While manxd does
// not answer it executes manx-cni-direct, which has one.
package main
