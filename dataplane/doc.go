// Package dataplane is the agent that keeps this host's routes, interfaces and sysctls as the datastore and BGP want them.
package dataplane
