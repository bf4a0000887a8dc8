// Package members counts the contributions to a set, and keeps networks that overlap from reaching the kernel.
package members
