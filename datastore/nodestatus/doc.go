// Package nodestatus writes the status of the CalicoNodeStatus objects of one node.
package nodestatus
