// Package fill fills a real kube-apiserver with the objects of a large cluster, within seconds: one object of each kind
// is written through the API by its writer in a cluster, and copies of it, in the form in which the apiserver stores
// it, into the apiserver's etcd.
package fill
