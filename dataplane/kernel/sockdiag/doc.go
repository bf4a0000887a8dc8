// Package sockdiag finds out who made the socket at the other end of a connection within this host (sock_diag(7)).
package sockdiag
