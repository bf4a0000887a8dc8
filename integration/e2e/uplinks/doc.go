// Package uplinks tests hosts with two uplinks, each to its own top-of-rack router: what failures and maintenance of an
// uplink or a router cost.
package uplinks
