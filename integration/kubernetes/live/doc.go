// Package live tests the parts that follow objects of a real Kubernetes API: addresses of services and labels of nodes
// in BGP, and CalicoNodeStatus.
package live
