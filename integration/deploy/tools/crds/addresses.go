package main

import "strings"

// Regular expressions for texts that Go's net/netip parses. The functions isIP and isCIDR of the Common Expression
// Language need Kubernetes 1.31, and an older API server refuses a whole definition that has one. A pattern has no cost
// budget either, so that lists need no longest length. Users read the pattern in the error: that of IPv6 is short, and
// leaves to manxctl to count the groups and the "::".
const (
	octet   = `(25[0-5]|(2[0-4]|1[0-9]|[1-9]?)[0-9])`
	ip4     = octet + `(\.` + octet + `){3}`
	ip6     = `([0-9a-fA-F]{0,4}:){2,8}([0-9a-fA-F]{0,4}|[0-9.]{7,15})`
	length4 = `/(3[0-2]|[12]?[0-9])`
	length6 = `/(12[0-8]|(1[01]|[1-9]?)[0-9])`
	port    = `:[0-9]+`
	// number16 is from 0 to 65535, with leading zeros.
	number16 = `0*(6553[0-5]|655[0-2][0-9]|65[0-4][0-9]{2}|6[0-4][0-9]{3}|[1-5]?[0-9]{1,4})`
)

// Patterns of whole fields; those of optional fields accept an empty text.
var (
	address  = whole(ip4, ip6)
	cidr     = whole(ip4+length4, ip6+length6)
	network  = whole(ip4+`(`+length4+`)?`, ip6+`(`+length6+`)?`) // an address or a CIDR, also with host bits
	optional = whole(ip4, ip6, "")
	// peerAddress is an address, IPv4:PORT or [IPv6]:PORT.
	peerAddress = whole(ip4+`(`+port+`)?`, ip6, `\[`+ip6+`\]`+port, "")
	// An IPv4 address may have the form of IPv6.
	networkV4 = whole(ip4+`(`+length4+`)?`, ip6, "")
	networkV6 = whole(ip6+`(`+length6+`)?`, "")
	community = whole(number16+`:`+number16, `[0-9]+:[0-9]+:[0-9]+`)
	protocol  = whole(`TCP`, `UDP`, `ICMP`, `ICMPv6`, `SCTP`, `UDPLite`, `0*(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9][0-9]?)`)
)

func whole(alternatives ...string) string { return `^(` + strings.Join(alternatives, "|") + `)$` }
