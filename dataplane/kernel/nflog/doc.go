// Package nflog reads the packets that rules send to a group of NFLOG.
package nflog
