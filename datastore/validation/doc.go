// Package validation sets Calico's defaults in objects and lists the rules that an object breaks.
package validation
