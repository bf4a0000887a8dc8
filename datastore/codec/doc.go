// Package codec converts objects between their values and Calico's stored JSON, and prepares them for a write.
package codec
