// Package echo probes other hosts with packets of a size that no router may fragment (ICMP echo of RFC 792 and
// RFC 4443, icmp(7)).
package echo
