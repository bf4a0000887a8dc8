// Package gobgpapi serves GoBGP's v3 API (apipb.GobgpApi) over Manx's speaker, so that the stock gobgp command of the
// v3 releases can look at it. It reads everything and changes nothing but soft resets.
package gobgpapi
