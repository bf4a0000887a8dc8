// Package echo asks other hosts for echoes of packets of a size, which no router may fragment (ICMP echo of RFC 792 and
// RFC 4443, icmp(7)).
package echo
