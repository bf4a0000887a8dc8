// Package fib holds the routes that other speakers announce, and decides which of their paths this node uses.
package fib
