// Package server serves the control API of manxd on a unix socket, and health and metrics over HTTP.
package server
