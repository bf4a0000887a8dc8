// Package labels keeps track of which labelled items each selector matches, at a cost that follows the change.
package labels
