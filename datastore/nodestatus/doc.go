// Package nodestatus fills in the CalicoNodeStatus objects that ask for the status of one node.
package nodestatus
