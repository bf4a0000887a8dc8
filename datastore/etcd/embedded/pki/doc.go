// Package pki is a certificate authority in a folder, for servers that authenticate clients by certificate.
package pki
