// Package flowlog tells which packets policy dropped, and by which rule, without telling the same over and over.
package flowlog
