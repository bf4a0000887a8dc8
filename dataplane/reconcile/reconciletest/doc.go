// Package reconciletest has the tests of the reconcile contract, which every table of desired and actual objects
// passes.
package reconciletest
