// Package gobgppolicy translates filters, refusals and the rules of export into policies of GoBGP; it has no
// side effects.
package gobgppolicy
