// Package hostfirewall decides from the rules of other programs in nftables which packets they drop. An accept of Manx
// ends only its own base chain: those of Docker, ufw, firewalld or an administrator still drop the packet. Pure.
package hostfirewall
