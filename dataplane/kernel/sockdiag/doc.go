// Package sockdiag returns the owner of the socket at the other end of a connection within this host (sock_diag(7)).
package sockdiag
