// Package pki is a certificate authority kept in a folder, for servers that know their clients by certificate.
package pki
