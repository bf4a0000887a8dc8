// Package e2e holds the tests that drive the real programs in a lab the way users, peers and other writers of the
// datastore do.
package e2e
