package main

import (
	"strings"
)

// Regular expressions for texts that Go's net/netip parses. The functions isIP and isCIDR of the Common Expression
// Language need Kubernetes 1.31, and an older API server refuses a whole definition that has one. A pattern has no cost
// budget either, so that lists need no longest length. Users read the pattern in the error: that of IPv6 is short, and
// leaves to manxctl to count the groups and the "::".
const (
	octet = `(25[0-5]|(2[0-4]|1[0-9]|[1-9]?)[0-9])`
	ip4   = octet + `(\.` + octet + `){3}`
	ip6   = `([0-9a-fA-F]{0,4}:){2,8}([0-9a-fA-F]{0,4}|[0-9.]{7,15})`
	// ip4In6 is an address of IPv4 in the form of IPv6 (RFC 4291 section 2.5.5.2).
	ip4In6  = `[0:]+:[fF]{4}:([0-9.]{7,15}|[0-9a-fA-F]{1,4}:[0-9a-fA-F]{1,4})`
	length4 = `/(3[0-2]|[12]?[0-9])`
	length6 = `/(12[0-8]|(1[01]|[1-9]?)[0-9])`
	// part4 and part6 are lengths of less than all addresses.
	part4 = `/(3[0-2]|[12][0-9]|[1-9])`
	part6 = `/(12[0-8]|1[01][0-9]|[1-9][0-9]?)`
	// portNumber is from 1 to 65535, with leading zeros.
	portNumber = `0*(6553[0-5]|655[0-2][0-9]|65[0-4][0-9]{2}|6[0-4][0-9]{3}|[1-5][0-9]{4}|[1-9][0-9]{0,3})`
	// number16 is from 0 to 65535, with leading zeros.
	number16 = `0*(6553[0-5]|655[0-2][0-9]|65[0-4][0-9]{2}|6[0-4][0-9]{3}|[1-5]?[0-9]{1,4})`
)

// Patterns of whole fields; those of optional fields accept an empty text.
var (
	address  = whole(ip4, ip6)
	cidr     = whole(ip4+length4, ip6+length6)
	network  = whole(ip4+`(`+length4+`)?`, ip6+`(`+length6+`)?`) // an address or a CIDR, also with host bits
	optional = whole(ip4, ip6, "")
	// cidrOfPart is of less than all addresses.
	cidrOfPart = whole(ip4+part4, ip6+part6)
	optional4  = whole(ip4, ip4In6, "")
	optional6  = whole(ip6, "")
	// peerAddress is an address, IPv4:PORT or [IPv6]:PORT.
	peerAddress = whole(ip4+`(:`+portNumber+`)?`, ip6, `\[`+ip6+`\]:`+portNumber, "")
	networkV4   = whole(ip4+length4, "")
	networkV6   = whole(ip6+length6, "")
	// port is a number, a range, or a name with a letter or one of "_", "." and "-".
	port            = whole(portNumber, portNumber+`:`+portNumber, `[0-9]*[a-zA-Z_.-][a-zA-Z0-9_.-]*`)
	community       = whole(number16+`:`+number16, `[0-9]+:[0-9]+:[0-9]+`)
	nameOrCommunity = whole(names, number16+`:`+number16, `[0-9]+:[0-9]+:[0-9]+`)
	protocol        = whole(`TCP`, `UDP`, `ICMP`, `ICMPv6`, `SCTP`, `UDPLite`,
		`0*(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9][0-9]?)`)
)

// Patterns of names.
const (
	names        = `[a-zA-Z0-9_.-]{1,128}`
	name         = `^` + names + `$`
	optionalName = `^(` + names + `)?$`
	keyValues    = `^([^=,\s]+=[^=,]*(,[^=,\s]+=[^=,]*)*,?)?$`
	dnsLabel     = `[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?`
	dnsSubdomain = `^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`
	longestCIDR  = 49 // IPv6 with the last two groups as an IPv4 address
)

func whole(alternatives ...string) string { return `^(` + strings.Join(alternatives, "|") + `)$` }

// Expressions about the CIDR of IPv4 whose octets and length are the list o: its first address, and the number of its
// addresses.
const (
	base = "int(o[0]) * 16777216 + int(o[1]) * 65536 + int(o[2]) * 256 + int(o[3])"
	size = "[4294967296, 2147483648, 1073741824, 536870912, 268435456, 134217728, 67108864, 33554432, 16777216, " +
		"8388608, 4194304, 2097152, 1048576, 524288, 262144, 131072, 65536, 32768, 16384, 8192, 4096, 2048, 1024, " +
		"512, 256, 128, 64, 32, 16, 8, 4, 2, 1][int(o[4])]"
)

// ofV4 is true for a text that is no CIDR of IPv4, and for one that an expression with base and size holds for.
func ofV4(text, expression string) string {
	return "!" + text + ".matches('^[0-9]{1,3}([.][0-9]{1,3}){3}/([12]?[0-9]|3[0-2])$') || [" + text +
		".replace('/', '.').split('.')].all(o, " + expression + ")"
}

// network4 refuses host bits in a CIDR of IPv4. Of IPv6, whose text has many forms, it compares the last group only.
var network4 = both(cel("must not have host bits set", ofV4("self", "("+base+") % "+size+" == 0")),
	cel("must not have host bits set", "!self.contains(':') || "+
		"!self.matches('[1-9a-fA-F]0*/([0-9]|[1-9][0-9]|10[0-9]|11[0-2])$')"))
