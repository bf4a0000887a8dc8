// Package members counts who contributes what to a set, and keeps networks that overlap from reaching the kernel.
package members
