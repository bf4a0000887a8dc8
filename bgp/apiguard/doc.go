// Package apiguard admits callers to a gRPC service on a loopback address by their user ID, and bounds their cost.
package apiguard
