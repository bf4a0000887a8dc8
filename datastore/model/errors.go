package model

import "errors"

// Errors that a store returns, wrapped with the key. They stand here so that code above a store needs nothing else to
// tell them apart; package datastore names them again.
var (
	ErrNotFound     = errors.New("does not exist")
	ErrExists       = errors.New("already exists")
	ErrConflict     = errors.New("update conflict: it was changed by someone else")
	ErrUnauthorized = errors.New("the datastore refuses these credentials")
	ErrUnavailable  = errors.New("the datastore cannot be reached")
	// ErrKubernetes is for kinds that no datastore keeps.
	ErrKubernetes = errors.New("belongs to Kubernetes and is not kept in Calico's datastore: use kubectl")
)
