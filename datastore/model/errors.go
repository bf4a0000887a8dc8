package model

import "errors"

// Errors that a store returns, wrapped with the key. They are defined here for code that needs nothing else of a store;
// package datastore has them under the same names.
var (
	ErrNotFound     = errors.New("does not exist")
	ErrExists       = errors.New("already exists")
	ErrConflict     = errors.New("update conflict: it was changed by someone else")
	ErrUnauthorized = errors.New("the datastore refuses these credentials")
	ErrUnavailable  = errors.New("the datastore cannot be reached")
	// ErrKubernetes is for kinds that no datastore stores.
	ErrKubernetes = errors.New("belongs to Kubernetes and is not kept in Calico's datastore: use kubectl")
)
