package datastore

import "context"

type requesterKey struct{}

// WithRequester has all requests under a context be made in the name of a part of the program, such as "controllers":
// where the datastore keeps an audit log, that log has it.
func WithRequester(ctx context.Context, name string) context.Context {
	return context.WithValue(ctx, requesterKey{}, name)
}

// Requester returns the part of the program in whose name requests are made; empty if none was named.
func Requester(ctx context.Context) string {
	name, _ := ctx.Value(requesterKey{}).(string)
	return name
}
