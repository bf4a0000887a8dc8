package datastore

import "context"

type requesterKey struct{}

// WithRequester marks all requests under a context as made by a part of the program, such as "controllers", for the
// datastore's audit log.
func WithRequester(ctx context.Context, name string) context.Context {
	return context.WithValue(ctx, requesterKey{}, name)
}

// Requester returns the requesting part of the program; empty if it is not set.
func Requester(ctx context.Context) string {
	name, _ := ctx.Value(requesterKey{}).(string)
	return name
}
